//! A helper to choose a time to live.

use std::time::Duration;

/// Helper to choose a time to live.
#[derive(Debug, Clone, Copy)]
pub struct Ttl;

impl Ttl {
    /// Returns twice the sum of the longest step between two checks of the guard, the network latency, and the allowed clock
    /// drift (1 % + 2 ms): long enough to survive one lost renewal, short enough for a quick takeover.
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
