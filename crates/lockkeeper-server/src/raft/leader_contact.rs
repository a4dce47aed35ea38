//! Time of the last message from a leader. openraft reports the last leader until another one is elected. Without this time a
//! follower would redirect its clients to a failed leader until another one is elected.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time of the last contact with a leader.
#[derive(Debug)]
pub(crate) struct LeaderContact {
    last: Mutex<Option<Instant>>,
    created: Instant,
    /// The leader counts as unknown after this silence.
    forget_after: Duration,
}

impl LeaderContact {
    pub(crate) fn new(forget_after: Duration) -> LeaderContact {
        LeaderContact { last: Mutex::default(), created: Instant::now(), forget_after }
    }

    /// Records a message of a leader.
    pub(crate) fn record(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns when a leader was last heard.
    pub(crate) fn last(&self) -> Option<Instant> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns for how long no leader was heard, at most since the start.
    pub(crate) fn silent_for(&self) -> Duration {
        self.last().unwrap_or(self.created).elapsed()
    }

    /// Returns whether a leader was heard within `forget_after`.
    pub(crate) fn is_recent(&self) -> bool {
        self.last().is_some_and(|last| last.elapsed() < self.forget_after)
    }
}
