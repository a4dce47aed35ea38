//! Waiting: in the server's own queue, which wakes one waiter for each release.

use std::time::Duration;

/// The value of `lock_timeout` for a wait.
pub(super) fn lock_timeout(wait: Duration) -> String {
    // 0 would mean no timeout.
    format!("{}ms", wait.as_millis().clamp(1, i32::MAX as u128))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_timeout_is_never_disabled() {
        assert_eq!(lock_timeout(Duration::ZERO), "1ms");
        assert_eq!(lock_timeout(Duration::from_millis(1_500)), "1500ms");
        assert_eq!(lock_timeout(Duration::MAX), "2147483647ms");
    }
}
