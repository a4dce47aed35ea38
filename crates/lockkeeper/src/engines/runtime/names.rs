//! Lock names as names of keys: any text becomes one path segment. And the wall clock, for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::percent;

/// The name with everything but plain ASCII as %XX. Neither `/` nor `%` stays as it is, and no segment begins with a
/// dot: a lock "a" never covers a lock "a/b", and every server takes the result.
pub(crate) fn escape(name: &str) -> String {
    percent::encode(name, |index, byte| {
        !matches!(byte, b'/' | b'%' | b'?' | b'#' | b'\\') && (index > 0 || byte != b'.')
    })
}

/// The name that was escaped; `None` if it is not one of ours.
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    percent::decode(escaped)
}

/// Wall-clock time, for people to read: nothing is decided by it.
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_segment_and_comes_back() {
        for name in ["a/b", ".", "..", "100%", "%2F", "größe", "a b", "?#", "\\", "\u{1F512}"] {
            let escaped = escape(name);
            assert!(escaped.is_ascii() && !escaped.contains(['/', ' ', '?', '#']), "{escaped}");
            assert!(!escaped.starts_with('.'), "{escaped}");
            assert_eq!(unescape(&escaped).as_deref(), Some(name));
        }
        // What a name begins with, its escaped form begins with.
        assert!(escape("orders/4472").starts_with(&escape("orders/")));
    }
}
