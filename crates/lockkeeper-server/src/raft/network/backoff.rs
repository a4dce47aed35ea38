//! Pauses between two attempts to connect.

use std::time::Duration;

/// Short at first, because a node that was restarted is soon back.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);

/// Pauses that double, each with a random part, so that not all members try at the same moment.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    /// The connection worked: the next pause is short again.
    pub(super) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// The next pause: between one half and all of it.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        pause / 2 + random_below(pause / 2)
    }
}

/// A random time below this one; zero if there is no chance to be had.
pub(crate) fn random_below(limit: Duration) -> Duration {
    let micros = (limit.as_micros() as u64).max(1);
    Duration::from_micros(lockkeeper_net::random::number().unwrap_or_default() % micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_again() {
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
