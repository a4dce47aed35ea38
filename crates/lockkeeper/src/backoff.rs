//! When to try again: soon at first, then ever later, and never all clients at once.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_secs(2);

/// The pause before an attempt: 25 ms doubled each time up to 2 s, of which a random half is waited.
pub(crate) fn pause(attempt: usize) -> Duration {
    let full = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
    let half = full / 2;
    half + Duration::from_micros(random(half.as_micros() as u64 + 1))
}

/// A number below `bound`.
pub(crate) fn random(bound: u64) -> u64 {
    // Without a source of randomness, clients merely come back at the same time.
    getrandom::u64().unwrap_or_default().checked_rem(bound).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_at_two_seconds() {
        for attempt in 0..40 {
            let pause = pause(attempt);
            let full = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
            assert!(pause >= full / 2 && pause <= full + Duration::from_micros(1), "{attempt}: {pause:?}");
        }
    }
}
