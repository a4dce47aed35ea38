//! When a leader was last heard. Raft itself remembers who led until somebody else does, so without this a member
//! whose leader is gone would send its callers there for as long as no other can be elected.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A leader that was not heard for so long is not named any more. An election takes less.
const SILENT_AFTER: Duration = Duration::from_millis(1_000);

/// The last sign of life of a leader.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    last: Mutex<Option<Instant>>,
}

impl Heard {
    /// A leader has sent something.
    pub(crate) fn now(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a leader was heard lately.
    pub(crate) fn lately(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < SILENT_AFTER)
    }
}
