//! When to try again: soon at first, then ever later, and never all clients at once.

use std::time::Duration;

pub(super) const FIRST: Duration = Duration::from_millis(10);
/// A fail-over is over soon: as long as it may be one, nobody waits longer than this.
const LONGEST_AT_FIRST: Duration = Duration::from_millis(80);
const SOON_ATTEMPTS: usize = 50;
const LONGEST: Duration = Duration::from_secs(2);

/// The pause before an attempt: 10 ms doubled each time up to 80 ms, after fifty attempts up to 2 s, of which a
/// random half is waited.
pub(super) fn pause(attempt: usize) -> Duration {
    let half = full(attempt) / 2;
    half + Duration::from_micros(random(half.as_micros() as u64 + 1))
}

fn full(attempt: usize) -> Duration {
    match attempt.checked_sub(SOON_ATTEMPTS) {
        None => FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST_AT_FIRST),
        Some(late) => LONGEST_AT_FIRST.saturating_mul(1 << late.min(10)).min(LONGEST),
    }
}

/// A number below `bound`.
pub(super) fn random(bound: u64) -> u64 {
    // Without a source of randomness, clients merely come back at the same time.
    getrandom::u64().unwrap_or_default().checked_rem(bound).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_at_two_seconds() {
        let mut before = Duration::ZERO;
        for attempt in 0..80 {
            let (pause, full) = (pause(attempt), full(attempt));
            assert!(pause >= full / 2 && pause <= full + Duration::from_micros(1), "{attempt}: {pause:?}");
            assert!(full >= before, "{attempt}");
            before = full;
        }
        assert_eq!((full(0), full(49), full(79)), (FIRST, LONGEST_AT_FIRST, LONGEST));
    }
}
