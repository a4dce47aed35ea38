//! Percent-encoding of names.

use std::fmt::Write;

/// Encodes every byte that is not plain as %XX. `is_plain` gets the index and value of a printable byte, and must return
/// false for `%`.
pub fn encode(text: &str, is_plain: impl Fn(usize, u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len() + 8);
    for (index, byte) in text.bytes().enumerate() {
        if byte.is_ascii_graphic() && is_plain(index, byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Decodes an encoded text; `None` if it is malformed.
pub fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
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
