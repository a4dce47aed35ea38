//! Sequencers: a token with its lock and mode as one text that any service can pass on and check.

use std::fmt;
use std::str::FromStr;

use crate::command::Mode;
use crate::id::{LockName, Token};

/// A sequencer, written `lk1:<token>:<x or s>:<name>`. The name comes last and is percent-encoded where it is not plain
/// ASCII, so that the text fits into a header, an environment variable or a log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequencer {
    /// The lock.
    pub lock: LockName,
    /// Its token.
    pub token: Token,
    /// The mode in which it is held.
    pub mode: Mode,
}

impl fmt::Display for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Exclusive => 'x',
            Mode::Shared => 's',
        };
        write!(f, "lk1:{}:{mode}:", self.token)?;
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'%';
        // Fast path: nearly every name is plain, and every grant has a sequencer.
        let mut rest = self.lock.as_str();
        while let Some(odd) = rest.bytes().position(|byte| !is_plain(&byte)) {
            let (plain, from_odd) = rest.split_at(odd);
            f.write_str(plain)?;
            let character = from_odd.chars().next().map_or(0, char::len_utf8);
            for byte in &from_odd.as_bytes()[..character] {
                write!(f, "%{byte:02X}")?;
            }
            rest = &from_odd[character..];
        }
        f.write_str(rest)
    }
}

/// Error for a text that is not a sequencer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a sequencer: expected text like lk1:42:x:orders/4472, as returned with the grant")]
pub struct InvalidSequencer;

impl FromStr for Sequencer {
    type Err = InvalidSequencer;

    fn from_str(text: &str) -> Result<Sequencer, InvalidSequencer> {
        let mut parts = text.splitn(4, ':');
        let mut next = || parts.next().ok_or(InvalidSequencer);
        if next()? != "lk1" {
            return Err(InvalidSequencer);
        }
        let number = next()?;
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(InvalidSequencer);
        }
        let token = Token(number.parse().map_err(|_| InvalidSequencer)?);
        let mode = match next()? {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            _ => return Err(InvalidSequencer),
        };
        let lock = crate::percent::decode(next()?).ok_or(InvalidSequencer)?;
        if lock.is_empty() || token > Token::MAX {
            return Err(InvalidSequencer);
        }
        Ok(Sequencer { lock: lock.into(), token, mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_round_trips() {
        for name in ["orders/4472", "a b", "100%", "größe", "a:b:c", "\u{1F512}"] {
            for mode in [Mode::Exclusive, Mode::Shared] {
                let written = Sequencer { lock: name.into(), token: Token(42), mode };
                let text = written.to_string();
                assert!(text.is_ascii() && !text.contains(' '), "{text}");
                assert_eq!(text.parse(), Ok(written));
            }
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "lk1",
            "lk1:42:x:",
            "lk1:42:q:a",
            "lk2:42:x:a",
            "lk1:-1:x:a",
            "lk1:+1:x:a",
            "lk1:42:x:%f",
            "lk1:42:x:%ff",
        ] {
            assert_eq!(text.parse::<Sequencer>(), Err(InvalidSequencer), "{text}");
        }
        assert_eq!("lk1:9007199254740992:x:a".parse::<Sequencer>(), Err(InvalidSequencer));
    }
}
