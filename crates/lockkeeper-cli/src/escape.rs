//! Escapes characters that could control a terminal or change the order in which text is shown. Clients choose names,
//! owners and values, so all output and logs of the CLI are escaped.

use std::borrow::Cow;
use std::io::{self, Write};

/// Control characters, and invisible characters that change how others are shown (Trojan Source, CVE-2021-42574).
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Escapes text for one line, with unsafe characters as `\u{202e}`.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Escapes text of several lines.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n')
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_safe = |c| !is_unsafe(c) || keep(c);
    if text.chars().all(is_safe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_safe(c) {
            true => safe.push(c),
            false => safe.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(safe)
}

/// Escapes unsafe characters in JSON as `\u202e`, without changing its meaning. `serde_json` does so up to U+001F only.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    let is_safe = |c: char| !is_unsafe(c) || c == '\n';
    if text.chars().all(is_safe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_safe(c) {
            true => safe.push(c),
            false => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| safe.push_str(&format!("\\u{unit:04x}")))
            }
        }
    }
    Cow::Owned(safe)
}

/// Writes log lines to stderr.
pub(crate) struct LogWriter {
    pub(crate) is_json: bool,
    /// Whether the lines have colours, which are control characters.
    pub(crate) has_colours: bool,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The subscriber writes whole lines.
        let text = String::from_utf8_lossy(bytes);
        let text = match self.is_json {
            true => json(&text),
            false => escaped(&text, |c| c == '\n' || c == '\t' || self.has_colours && c == '\u{1b}'),
        };
        io::stderr().write_all(text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        for bad in ["\u{202e}", "\u{1b}[2J", "\r", "\u{7}", "\u{9b}31m", "\u{2066}", "\u{200f}", "\u{e0041}"]
        {
            let text = format!("orders/{bad}4472");
            for shown in [line(&text), lines(&text), json(&text)] {
                assert!(!shown.chars().any(is_unsafe), "{shown:?}");
                assert!(shown.starts_with("orders/\\u") && shown.ends_with("4472"), "{shown}");
            }
        }
        assert_eq!(line("a\nb"), "a\\u{a}b");
        assert_eq!(lines("a\nb"), "a\nb");
        assert_eq!(line("größer/日本/\"x\""), "größer/日本/\"x\"", "ordinary text is unchanged");
    }

    #[test]
    fn escaped_json_decodes_to_the_same_text() {
        let name = "a\u{202e}b\u{e0041}\u{1b}c";
        let text = serde_json::to_string(name).unwrap();
        let shown = json(&text).into_owned();
        assert!(!shown.chars().any(is_unsafe), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), name);
    }
}
