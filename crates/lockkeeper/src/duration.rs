//! Durations from integer literals: `10.secs()`.

use std::time::Duration;

/// Extension of integers that creates durations.
///
/// ```
/// use lockkeeper::Durations;
/// assert_eq!(10.secs(), std::time::Duration::from_secs(10));
/// assert_eq!(1500.millis(), std::time::Duration::from_millis(1500));
/// ```
pub trait Durations: Sized {
    /// Returns a duration of this many milliseconds.
    fn millis(self) -> Duration;
    /// Returns a duration of this many seconds.
    fn secs(self) -> Duration;
    /// Returns a duration of this many minutes.
    fn mins(self) -> Duration;
}

// For one type only, so that a literal such as `10` needs no suffix.
impl Durations for u64 {
    fn millis(self) -> Duration {
        Duration::from_millis(self)
    }

    fn secs(self) -> Duration {
        Duration::from_secs(self)
    }

    fn mins(self) -> Duration {
        Duration::from_secs(self.saturating_mul(60))
    }
}
