//! Names of locks as names of keys (any text, one path segment), and what entries say to people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::percent;

/// The name with everything but plain ASCII as %XX. Neither `/` nor `%` stays as it is, and no segment begins with a
/// dot: a lock "a" never covers a lock "a/b", and every server takes the result.
pub(crate) fn escape(name: &str) -> String {
    percent::encode(name, |index, byte| {
        !matches!(byte, b'/' | b'%' | b'?' | b'#' | b'\\') && (index > 0 || byte != b'.')
    })
}

/// The name that was escaped; `None` if it is none of ours.
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    percent::decode(escaped)
}

/// Wall-clock time, for people to read: nothing is decided by it.
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
