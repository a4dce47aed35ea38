//! A line in the log for a request that had to wait for long: who waited for what, and how long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{CellTime, Grant, SessionId};

/// Lines in one second of cell time; the rest is counted.
const LINES_PER_SECOND_MAX: u64 = 10;

/// What counts as slow, and how much was said of it in this second.
#[derive(Debug)]
pub struct Slow {
    after_ms: u64,
    second: AtomicU64,
    said: AtomicU64,
}

impl Slow {
    /// Waits of this length and more are slow; zero means that none is.
    pub fn new(after: Duration) -> Slow {
        let after_ms = match u64::try_from(after.as_millis()) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(ms) => ms,
        };
        Slow { after_ms, second: AtomicU64::new(0), said: AtomicU64::new(0) }
    }

    /// Whether a wait was slow.
    pub fn is_slow(&self, waited_ms: u64) -> bool {
        waited_ms >= self.after_ms
    }

    /// Says so, unless enough was said in this second.
    pub fn say(&self, now: CellTime, session: SessionId, owner: &str, grant: &Grant, waited_ms: u64) {
        let second = now.0 / 1_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            let left_out = self.said.swap(0, Ordering::Relaxed).saturating_sub(LINES_PER_SECOND_MAX);
            if left_out > 0 {
                tracing::warn!(left_out, "more slow acquires");
            }
        }
        if self.said.fetch_add(1, Ordering::Relaxed) >= LINES_PER_SECOND_MAX {
            return;
        }
        let lock = grant.locks.as_slice().first().map(|name| name.as_str()).unwrap_or_default();
        // An owner is other people's text: quoted, it cannot pass for lines of ours.
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
    fn zero_means_never() {
        assert!(!Slow::new(Duration::ZERO).is_slow(u64::MAX - 1));
        assert!(Slow::new(Duration::from_millis(5)).is_slow(5));
        assert!(!Slow::new(Duration::from_millis(5)).is_slow(4));
    }
}
