//! The measured round trip to a member.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Minimum number of samples: a single one may be an outlier.
const SAMPLES_MIN: u32 = 3;

/// Round trip, smoothed over the last pings.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    state: Mutex<(u32, Duration)>,
}

impl RoundTrip {
    /// Records the round trip of a ping.
    pub(super) fn record(&self, sample: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (samples, smoothed) = *state;
        let smoothed = match samples {
            0 => sample,
            _ => (smoothed * 3 + sample) / 4,
        };
        *state = (samples.saturating_add(1), smoothed);
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        let (samples, smoothed) = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (samples >= SAMPLES_MIN).then_some(smoothed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_slow_answer_is_smoothed_out() {
        let round_trip = RoundTrip::default();
        let ms = Duration::from_millis;
        for sample in [1, 1] {
            round_trip.record(ms(sample));
            assert_eq!(round_trip.smoothed(), None);
        }
        round_trip.record(ms(41));
        assert_eq!(round_trip.smoothed(), Some(ms(11)));
        for _ in 0..30 {
            round_trip.record(ms(40));
        }
        assert!(round_trip.smoothed().is_some_and(|smoothed| smoothed > ms(39)));
    }
}
