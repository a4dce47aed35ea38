//! When a leader was last heard. Raft itself remembers who led until somebody else does, so without this a member
//! whose leader is gone would send its callers there for as long as no other can be elected.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The last message of a leader.
#[derive(Debug)]
pub(crate) struct Heard {
    last: Mutex<Option<Instant>>,
    /// A leader that was not heard for so long is not named any more.
    forget_after: Duration,
}

impl Heard {
    pub(crate) fn new(forget_after: Duration) -> Heard {
        Heard { last: Mutex::default(), forget_after }
    }

    /// A leader has sent something.
    pub(crate) fn now(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// When a leader was last heard.
    pub(crate) fn last(&self) -> Option<Instant> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a leader was heard lately.
    pub(crate) fn lately(&self) -> bool {
        self.last().is_some_and(|last| last.elapsed() < self.forget_after)
    }
}
