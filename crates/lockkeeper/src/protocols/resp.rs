//! The protocol of Redis.

use std::fmt::Write;

/// Encodes a command.
pub fn encode(words: &[&str]) -> String {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        // Writing to a string does not fail.
        let _ = write!(request, "${}\r\n{word}\r\n", word.len());
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_bytes() {
        assert_eq!(encode(&["GET", "ä"]), "*2\r\n$3\r\nGET\r\n$2\r\nä\r\n");
    }
}
