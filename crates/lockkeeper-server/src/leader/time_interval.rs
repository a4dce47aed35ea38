//! The interval at which the leader of a quiet cell logs cell time (S2).
//!
//! The next leader continues at the time of the last entry that reached it. The last entry of a leader that fails may still have
//! been on its way, so a fail-over sets cell time back by up to the interval and the time that an entry takes to a member.

use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::timekeeping::TIME_LOGGED_EVERY_MS;

/// Shortest interval, for members further apart than any timing preset supports.
const INTERVAL_MIN_MS: u64 = 250;

/// Returns the interval for members with this round trip. An entry takes half of it; the other half is for a round trip that
/// becomes longer.
pub(super) fn ms(longest_round_trip: Duration) -> u64 {
    if mutation::is_on(Mutation::TimeIgnoresDistance) {
        return TIME_LOGGED_EVERY_MS;
    }
    let distance_ms = u64::try_from(longest_round_trip.as_millis()).unwrap_or(u64::MAX);
    TIME_LOGGED_EVERY_MS.saturating_sub(distance_ms).max(INTERVAL_MIN_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::TimingPreset;

    #[test]
    fn interval_and_the_way_of_an_entry_take_less_than_a_second() {
        assert_eq!(ms(Duration::ZERO), 950);
        assert_eq!(ms(Duration::from_secs(5)), INTERVAL_MIN_MS);
        for preset in [TimingPreset::Lan, TimingPreset::Region, TimingPreset::Global] {
            let round_trip = preset.timing().round_trip_max();
            assert!(
                Duration::from_millis(ms(round_trip)) + round_trip < Duration::from_secs(1),
                "{preset:?}"
            );
        }
    }
}
