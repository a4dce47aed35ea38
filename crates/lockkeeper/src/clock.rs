//! The clock for all decisions: monotonic, and it includes the time that the machine is suspended (S4).
//!
//! Tokio's timers do not advance during a suspend, so they only wake a task; the task then decides by this clock.

use std::time::Duration;

#[cfg(feature = "simulation")]
use lockkeeper_core::mutation::{self, Mutation};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A moment on this machine's clock, in nanoseconds since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// A moment that never comes.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    pub(crate) fn now() -> Moment {
        #[cfg(feature = "simulation")]
        if let Some(host) = lockkeeper_net::simulation::host() {
            return Moment(match mutation::is_on(Mutation::WallClock) {
                true => host.wall_clock(),
                false => host.clock(),
            });
        }
        let time = clock_gettime(CLOCK);
        Moment((time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64))
    }

    pub(crate) fn plus(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to this moment; zero if this moment is earlier.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The longest sleep before the clock is checked again: tokio's timers are late by the length of a suspend.
pub(crate) const SLICE: Duration = Duration::from_secs(1);

/// Sleeps until a moment, but at most for [`SLICE`]: callers check the clock afterwards.
pub(crate) async fn sleep_towards(moment: Moment) {
    tokio::time::sleep(moment.since(Moment::now()).min(SLICE)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_add_and_never_overflow() {
        let now = Moment::now();
        assert_eq!(now.plus(Duration::from_millis(5)).since(now), Duration::from_millis(5));
        assert_eq!(now.since(now.plus(Duration::from_secs(1))), Duration::ZERO);
        assert_eq!(now.plus(Duration::MAX), Moment::NEVER);
    }
}
