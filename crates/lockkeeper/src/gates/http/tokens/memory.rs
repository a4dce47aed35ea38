//! Tokens in the memory of this process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lockkeeper_core::Token;

use super::{LOCKS_MAX, RaiseFuture, Tokens, too_many_locks};
use crate::error::Error;
use crate::gates::admit;

/// Token store in memory, lost when the process ends: for tests, and for resources that are in memory themselves.
#[derive(Debug, Default)]
pub struct MemoryTokens {
    // Invariant: no token ever decreases.
    highest: Mutex<HashMap<String, Token>>,
}

impl MemoryTokens {
    /// Creates an empty store.
    pub fn new() -> MemoryTokens {
        MemoryTokens::default()
    }

    fn raise_now(&self, lock: &str, token: Token) -> Result<(), Error> {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        match highest.get(lock) {
            Some(known) => admit(token, *known)?,
            None if highest.len() >= LOCKS_MAX => return Err(too_many_locks()),
            None => {}
        }
        highest.insert(lock.to_owned(), token);
        Ok(())
    }
}

impl Tokens for MemoryTokens {
    fn raise<'a>(&'a self, lock: &'a str, token: Token) -> RaiseFuture<'a> {
        Box::pin(std::future::ready(self.raise_now(lock, token)))
    }
}
