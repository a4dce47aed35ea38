//! How long a time to live should be.

use std::time::Duration;

/// Helps to choose a time to live.
#[derive(Debug, Clone, Copy)]
pub struct Ttl;

impl Ttl {
    /// Twice the time that the longest step between two checks of the guard takes, with the network's latency and the drift
    /// of clocks that we allow for (1 % and 2 ms): long enough for one lost renewal, short enough to pass on soon.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkeeper::Ttl;
    /// let ttl = Ttl::for_operation(Duration::from_secs(2), Duration::from_millis(50));
    /// assert_eq!(ttl, Duration::from_millis(2 * (2_000 + 50 + 22)));
    /// ```
    pub fn for_operation(operation: Duration, latency: Duration) -> Duration {
        let drift = operation / 100 + Duration::from_millis(2);
        2 * (operation + latency + drift)
    }
}
