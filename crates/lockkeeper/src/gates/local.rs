//! The gate for what a process keeps in its own memory.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_core::Token;

use super::{admit, not_enforced};
use crate::error::Error;

/// A gate in front of a structure of one's own: lower tokens fail, equal and higher ones pass, one at a time.
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
/// It remembers for as long as the process lives. If what it guards is kept longer, keep [`highest`](Gate::highest)
/// with it, and begin again with [`starting_at`](Gate::starting_at).
#[derive(Default)]
pub struct Gate {
    // Invariant: never goes down.
    highest: Mutex<Token>,
}

/// Being inside a [`Gate`]: nobody else is until it is dropped.
#[must_use = "the gate opens for others as soon as this is dropped"]
pub struct Pass<'a> {
    highest: MutexGuard<'a, Token>,
}

impl Gate {
    /// A gate that has seen no token yet.
    pub const fn new() -> Gate {
        Gate::starting_at(Token(0))
    }

    /// A gate that refuses everything below this token from the start.
    pub const fn starting_at(highest: Token) -> Gate {
        Gate { highest: Mutex::new(highest) }
    }

    /// Goes in, and keeps others out until the pass is dropped. It blocks the thread while somebody else is inside, so
    /// what is done inside should be short; a pass cannot be kept over an await in a task that moves between threads.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if a higher token was here before.
    pub fn enter(&self, token: Token) -> Result<Pass<'_>, Error> {
        let mut highest = self.locked();
        admit(token, *highest)?;
        *highest = token;
        Ok(Pass { highest })
    }

    /// Does the write inside the gate.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if a higher token was here before; the write is not called.
    pub fn run<T>(&self, token: Token, write: impl FnOnce() -> T) -> Result<T, Error> {
        let _pass = self.enter(token)?;
        Ok(write())
    }

    /// The highest token that went in.
    pub fn highest(&self) -> Token {
        *self.locked()
    }

    /// Proves that a newer token is let in and a stale one is not. The gate stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold.
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

    /// A write that panicked leaves the number as it is, and that is right.
    fn locked(&self) -> MutexGuard<'_, Token> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// The token that went in.
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
    fn a_write_that_panics_does_not_close_the_gate() {
        let gate = Gate::new();
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gate.run(Token(3), || panic!("oh"))));
        assert!(panicked.is_err());
        gate.run(Token(3), || ()).unwrap();
        assert_eq!(gate.run(Token(2), || ()).unwrap_err().code(), "stale_token");
    }

    #[test]
    fn thirty_two_writers_at_once_never_go_back() {
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
