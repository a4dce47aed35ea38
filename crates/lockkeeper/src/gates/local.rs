//! The gate of data in the memory of this process.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_core::Token;

use super::{admit, not_enforced};
use crate::error::Error;

/// Gate of data in this process: lower tokens fail, equal and higher ones pass, one at a time.
///
/// ```
/// use lockkeeper::{Token, gates::Gate};
///
/// let gate = Gate::new();
/// let mut balance = 100;
/// gate.run(Token(42), || balance -= 30)?;
/// assert_eq!(gate.run(Token(41), || balance -= 30).unwrap_err().code(), "stale_token");
/// assert_eq!(balance, 70);
/// # Ok::<_, lockkeeper::Error>(())
/// ```
///
/// It forgets its highest token when the process ends. If the data outlives the process, store [`highest`](Gate::highest)
/// with it and restore it with [`starting_at`](Gate::starting_at).
#[derive(Default)]
pub struct Gate {
    // Invariant: never decreases.
    highest: Mutex<Token>,
}

/// Exclusive access through a [`Gate`], until it is dropped.
#[must_use = "the gate admits others as soon as this is dropped"]
pub struct Pass<'a> {
    highest: MutexGuard<'a, Token>,
}

impl Gate {
    /// Creates a gate that has seen no token yet.
    pub const fn new() -> Gate {
        Gate::starting_at(Token(0))
    }

    /// Creates a gate that refuses tokens below this one from the start.
    pub const fn starting_at(highest: Token) -> Gate {
        Gate { highest: Mutex::new(highest) }
    }

    /// Checks the token and excludes others until the returned pass is dropped.
    ///
    /// It blocks the thread while another pass exists, so hold passes only briefly. A pass is not `Send`, so a task that
    /// moves between threads cannot hold it across an await.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the gate has seen a higher token.
    pub fn enter(&self, token: Token) -> Result<Pass<'_>, Error> {
        let mut highest = self.locked();
        admit(token, *highest)?;
        *highest = token;
        Ok(Pass { highest })
    }

    /// Checks the token and runs the write while others are excluded.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the gate has seen a higher token; the write does not run.
    pub fn run<T>(&self, token: Token, write: impl FnOnce() -> T) -> Result<T, Error> {
        let _pass = self.enter(token)?;
        Ok(write())
    }

    /// Returns the highest token that the gate has admitted.
    pub fn highest(&self) -> Token {
        *self.locked()
    }

    /// Proves that a newer token passes and a stale one does not, without changing the gate.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the proof fails.
    pub fn probe(&self) -> Result<(), Error> {
        let copy = Gate::starting_at(self.highest());
        let (older, newer) =
            (Token(copy.highest().0.saturating_add(1)), Token(copy.highest().0.saturating_add(2)));
        copy.enter(older).map(drop)?;
        copy.enter(newer).map(drop)?;
        match copy.enter(older).map(drop) {
            Err(Error::StaleToken { .. }) => Ok(()),
            _ => Err(not_enforced("the gate of this process")),
        }
    }

    /// Ignores poison: a write that panics leaves the highest token valid.
    fn locked(&self) -> MutexGuard<'_, Token> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Returns the admitted token.
    pub fn token(&self) -> Token {
        *self.highest
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("highest", &self.highest()).finish()
    }
}

impl fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("token", &self.token()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_tokens_fail_and_equal_ones_pass() {
        let gate = Gate::new();
        gate.probe().unwrap();
        assert_eq!(gate.enter(Token(5)).unwrap().token(), Token(5));
        drop(gate.enter(Token(5)).unwrap());
        let refused = gate.run(Token(4), || panic!("a stale write was done")).unwrap_err();
        assert_eq!(refused, Error::StaleToken { last_token: Token(5) });
        gate.run(Token(9), || ()).unwrap();
        gate.probe().unwrap();
        assert_eq!(gate.highest(), Token(9));
    }

    #[test]
    fn panicking_write_does_not_close_the_gate() {
        let gate = Gate::new();
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gate.run(Token(3), || panic!("oh"))));
        assert!(panicked.is_err());
        gate.run(Token(3), || ()).unwrap();
        assert_eq!(gate.run(Token(2), || ()).unwrap_err().code(), "stale_token");
    }

    #[test]
    fn tokens_of_32_concurrent_writers_never_decrease() {
        let gate = Gate::new();
        let accepted = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for writer in 1..=32_u64 {
                let (gate, accepted) = (&gate, &accepted);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let _ = gate.run(Token(writer), || accepted.lock().unwrap().push(writer));
                    }
                });
            }
        });
        let accepted = accepted.into_inner().unwrap();
        assert!(accepted.is_sorted());
        assert_eq!((accepted.last(), gate.highest()), (Some(&32), Token(32)));
    }
}
