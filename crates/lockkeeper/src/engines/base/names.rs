//! Names of locks as names of keys (any text, one path segment), and what entries say to people.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name with everything but plain ASCII as %XX. Neither `/` nor `%` stays as it is, and no segment begins with a
/// dot: a lock "a" never covers a lock "a/b", and every server takes the result.
pub(crate) fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len() + 8);
    for (index, byte) in name.bytes().enumerate() {
        let is_plain = byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%' | b'?' | b'#' | b'\\');
        if is_plain && (index > 0 || byte != b'.') {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// The name that was escaped; `None` if it is none of ours.
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Wall-clock time, for people to read: nothing is decided by it.
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
