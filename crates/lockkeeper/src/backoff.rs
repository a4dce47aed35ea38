//! Exponential backoff with jitter.

use std::time::Duration;

pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A fail-over of a cell is short: while it may last, no pause is longer than this.
const PAUSE_IN_FAIL_OVER_MAX: Duration = Duration::from_millis(80);
const FAIL_OVER_ATTEMPTS: usize = 50;

/// The pause before an attempt: 25 ms, doubled each time up to 2 s, with the upper half random.
pub(crate) fn pause(attempt: usize) -> Duration {
    with_jitter(pause_bound(attempt))
}

/// The pause before an attempt to reach a cell: up to 80 ms, and after 50 attempts as [`pause`].
#[cfg(any(feature = "cell", feature = "embedded"))]
pub(crate) fn pause_in_fail_over(attempt: usize) -> Duration {
    with_jitter(pause_bound_in_fail_over(attempt))
}

/// Pauses between attempts to reach a server of another vendor: 10 ms, doubled each time up to 1 s, with the upper half
/// random.
#[cfg(feature = "_servers")]
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempt: u32,
}

#[cfg(feature = "_servers")]
impl Backoff {
    const PAUSE_MIN: Duration = Duration::from_millis(10);
    const PAUSE_MAX: Duration = Duration::from_secs(1);

    pub(crate) fn next_pause(&mut self) -> Duration {
        let bound = Self::PAUSE_MIN.saturating_mul(1 << self.attempt.min(10)).min(Self::PAUSE_MAX);
        self.attempt = self.attempt.saturating_add(1);
        with_jitter(bound)
    }

    #[cfg(feature = "_sessions")]
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }
}

fn pause_bound(attempt: usize) -> Duration {
    PAUSE_MIN.saturating_mul(1 << attempt.min(10)).min(PAUSE_MAX)
}

#[cfg(any(feature = "cell", feature = "embedded"))]
fn pause_bound_in_fail_over(attempt: usize) -> Duration {
    match attempt.checked_sub(FAIL_OVER_ATTEMPTS) {
        None => (pause_bound(attempt) / 2).min(PAUSE_IN_FAIL_OVER_MAX),
        Some(late) => pause_bound(late).max(PAUSE_IN_FAIL_OVER_MAX),
    }
}

fn with_jitter(bound: Duration) -> Duration {
    let half = bound / 2;
    half + Duration::from_micros(random(half.as_micros() as u64 + 1))
}

/// A random number below `bound`.
pub(crate) fn random(bound: u64) -> u64 {
    // Without a source of randomness, clients merely retry at the same time.
    lockkeeper_net::random::number().unwrap_or_default().checked_rem(bound).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pause: fn(usize) -> Duration, pause_bound: fn(usize) -> Duration) {
        let mut before = Duration::ZERO;
        for attempt in 0..80 {
            let (pause, bound) = (pause(attempt), pause_bound(attempt));
            assert!(pause >= bound / 2 && pause <= bound + Duration::from_micros(1), "{attempt}: {pause:?}");
            assert!(bound >= before, "{attempt}");
            before = bound;
        }
        assert_eq!(pause_bound(79), PAUSE_MAX);
    }

    #[test]
    fn pauses_grow_and_end_at_two_seconds() {
        check(pause, pause_bound);
    }

    #[test]
    #[cfg(any(feature = "cell", feature = "embedded"))]
    fn pauses_stay_short_while_a_fail_over_may_last() {
        check(pause_in_fail_over, pause_bound_in_fail_over);
        assert_eq!(pause_bound_in_fail_over(FAIL_OVER_ATTEMPTS - 1), PAUSE_IN_FAIL_OVER_MAX);
    }
}
