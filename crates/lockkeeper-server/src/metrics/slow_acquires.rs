//! The log line for an acquire that waited long: which session waited for which lock, and how long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{CellTime, Grant, SessionId};

/// Lines per second of cell time; the rest is only counted.
const LINES_PER_SECOND_MAX: u64 = 10;

/// Logs slow acquires, throttled.
#[derive(Debug)]
pub struct SlowAcquireLog {
    after_ms: u64,
    second: AtomicU64,
    logged: AtomicU64,
}

impl SlowAcquireLog {
    /// Logs waits of this length and longer; zero turns logging off.
    pub fn new(after: Duration) -> SlowAcquireLog {
        let after_ms = match u64::try_from(after.as_millis()) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(ms) => ms,
        };
        SlowAcquireLog { after_ms, second: AtomicU64::new(0), logged: AtomicU64::new(0) }
    }

    /// Whether a wait was slow.
    pub fn is_slow(&self, waited_ms: u64) -> bool {
        waited_ms >= self.after_ms
    }

    /// Logs a slow acquire, unless this second has had its lines.
    pub fn log(&self, now: CellTime, session: SessionId, owner: &str, grant: &Grant, waited_ms: u64) {
        let second = now.0 / 1_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            let suppressed = self.logged.swap(0, Ordering::Relaxed).saturating_sub(LINES_PER_SECOND_MAX);
            if suppressed > 0 {
                tracing::warn!(suppressed, "more slow acquires");
            }
        }
        if self.logged.fetch_add(1, Ordering::Relaxed) >= LINES_PER_SECOND_MAX {
            return;
        }
        let lock = grant.locks.as_slice().first().map(|name| name.as_str()).unwrap_or_default();
        // The owner is text of a client: quoted, it cannot forge log lines.
        tracing::warn!(
            lock = ?lock,
            locks = grant.locks.as_slice().len(),
            owner = ?owner,
            session = %lockkeeper_core::history::ShortSession::from(session),
            token = grant.token.0,
            waited_ms,
            "slow acquire"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_threshold_means_never_slow() {
        assert!(!SlowAcquireLog::new(Duration::ZERO).is_slow(u64::MAX - 1));
        assert!(SlowAcquireLog::new(Duration::from_millis(5)).is_slow(5));
        assert!(!SlowAcquireLog::new(Duration::from_millis(5)).is_slow(4));
    }
}
