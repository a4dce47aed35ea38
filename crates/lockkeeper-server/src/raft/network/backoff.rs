//! Exponential backoff between connection attempts.

use std::time::Duration;

/// The first pause is short, because a restarted node is soon back.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);

/// Exponential backoff with jitter, so that members do not retry at the same moment.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    /// Restarts with the first pause after a successful connection.
    pub(super) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// Returns the next pause, with a jitter of up to one half.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        pause / 2 + random_below(pause / 2)
    }
}

/// Returns a random duration below `limit`, or zero if the random source fails.
pub(crate) fn random_below(limit: Duration) -> Duration {
    let micros = (limit.as_micros() as u64).max(1);
    Duration::from_micros(lockkeeper_net::random::number().unwrap_or_default() % micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_restart_after_a_reset() {
        let mut backoff = Backoff::new();
        let mut limit = FIRST;
        for _ in 0..10 {
            let pause = backoff.next();
            assert!(pause >= limit / 2 && pause <= limit, "{pause:?} of {limit:?}");
            limit = (limit * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
