//! Throttles log lines that remote callers can cause to one line per second for each kind. The metrics count all events.
//! Without throttling a flood would fill the disk.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// Throttles repeated log lines. Each kind of line has its own, so that none hides another.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogThrottle {
    pub(crate) const fn new() -> LogThrottle {
        LogThrottle { inner: Mutex::new(Inner { last: None, suppressed: 0 }) }
    }

    /// Whether the line may be written now, and how many were suppressed since the last one.
    pub(crate) fn allow(&self) -> Option<u64> {
        self.allow_at(Instant::now())
    }

    fn allow_at(&self, now: Instant) -> Option<u64> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            inner.suppressed += 1;
            return None;
        }
        inner.last = Some(now);
        Some(std::mem::take(&mut inner.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_passes_with_the_number_of_suppressed_ones() {
        let (throttle, began) = (LogThrottle::new(), Instant::now());
        assert_eq!(throttle.allow_at(began), Some(0));
        for _ in 0..999 {
            assert_eq!(throttle.allow_at(began + PAUSE / 2), None);
        }
        assert_eq!(throttle.allow_at(began + PAUSE), Some(999));
        assert_eq!(throttle.allow_at(began + PAUSE), None);
    }
}
