//! Lock names as path segments, and the wall clock for display.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::percent;

/// Percent-encodes a name into one path segment, which every server accepts. Also encodes `/` and `%`, so that a lock "a" is
/// never a parent of a lock "a/b", and a leading dot.
pub(crate) fn escape(name: &str) -> String {
    percent::encode(name, |index, byte| {
        !matches!(byte, b'/' | b'%' | b'?' | b'#' | b'\\') && (index > 0 || byte != b'.')
    })
}

/// Decodes an escaped name; `None` if it is not one of ours.
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    percent::decode(escaped)
}

/// Wall-clock time for display, never for decisions.
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_round_trips_as_one_segment() {
        for name in ["a/b", ".", "..", "100%", "%2F", "größe", "a b", "?#", "\\", "\u{1F512}"] {
            let escaped = escape(name);
            assert!(escaped.is_ascii() && !escaped.contains(['/', ' ', '?', '#']), "{escaped}");
            assert!(!escaped.starts_with('.'), "{escaped}");
            assert_eq!(unescape(&escaped).as_deref(), Some(name));
        }
        // Escaping preserves prefixes.
        assert!(escape("orders/4472").starts_with(&escape("orders/")));
    }
}
