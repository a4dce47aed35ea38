//! Waiting, in the server's own queue: it wakes one waiter for each release.

use std::time::Duration;

/// A limit of the wait as the server takes it; none if it is zero.
pub(super) fn lock_timeout(wait: Duration) -> String {
    // Nought means no limit at all to the server.
    format!("{}ms", wait.as_millis().clamp(1, i32::MAX as u128))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_never_without_a_limit() {
        assert_eq!(lock_timeout(Duration::ZERO), "1ms");
        assert_eq!(lock_timeout(Duration::from_millis(1_500)), "1500ms");
        assert_eq!(lock_timeout(Duration::MAX), "2147483647ms");
    }
}
