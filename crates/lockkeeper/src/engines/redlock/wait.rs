//! Waiting: no single server can announce a release, so waiters poll at random intervals.

use std::time::Duration;

use crate::backoff;

/// The shortest delay. It keeps clients that split the votes from colliding again at once.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_millis(200);

/// The delay before the retry of a take without a majority.
pub(super) fn retry_delay() -> Duration {
    DELAY_MIN + Duration::from_micros(backoff::random((DELAY_MAX - DELAY_MIN).as_micros() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_are_random_and_bounded() {
        let delays: Vec<_> = (0..50).map(|_| retry_delay()).collect();
        assert!(delays.iter().all(|delay| *delay >= DELAY_MIN && *delay < DELAY_MAX));
        assert!(delays.iter().any(|delay| *delay != delays[0]));
    }
}
