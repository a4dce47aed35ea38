//! How a waiter comes back: there is no one server that could tell of a release, so it looks again after a random time.

use std::time::Duration;

use crate::backoff;

/// At least this long, so that several who split the votes do not meet again at once.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(200);

/// When to try again after a try that got no majority.
pub(super) fn look_again() -> Duration {
    SHORTEST + Duration::from_micros(backoff::random((LONGEST - SHORTEST).as_micros() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_comes_back_at_the_same_time_as_all_others() {
        let pauses: Vec<_> = (0..50).map(|_| look_again()).collect();
        assert!(pauses.iter().all(|pause| *pause >= SHORTEST && *pause < LONGEST));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
