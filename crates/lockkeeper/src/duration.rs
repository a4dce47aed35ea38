//! Durations that read like words: `10.secs()`.

use std::time::Duration;

/// Durations from plain numbers.
///
/// ```
/// use lockkeeper::Durations;
/// assert_eq!(10.secs(), std::time::Duration::from_secs(10));
/// assert_eq!(1500.millis(), std::time::Duration::from_millis(1500));
/// ```
pub trait Durations: Sized {
    /// So many milliseconds.
    fn millis(self) -> Duration;
    /// So many seconds.
    fn secs(self) -> Duration;
    /// So many minutes.
    fn mins(self) -> Duration;
}

// Only for one type: a literal such as `10` then needs no suffix.
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
