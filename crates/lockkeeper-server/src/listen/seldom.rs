//! Lines in the log that a stranger can cause: one in a second is enough, the metrics count the rest. Otherwise a flood
//! would fill the disk.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// Remembers when something was last said.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    last: Mutex<Option<Instant>>,
}

impl Seldom {
    /// Whether it may be said now.
    pub(crate) fn now(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| last.elapsed() >= PAUSE);
        if may {
            *last = Some(Instant::now());
        }
        may
    }
}
