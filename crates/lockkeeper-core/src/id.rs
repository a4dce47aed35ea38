//! Identifiers in the lock table, and cell time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// The name of a lock. Short names are stored inline, long ones are shared.
pub type LockName = SmolStr;

/// The id of a request, chosen by the client. The same id in the same session denotes the same request.
pub type RequestId = SmolStr;

/// The id of a session: 128 random bits, so that it cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u128);

impl SessionId {
    /// The smallest id, the start of every range over sessions.
    pub const MIN: SessionId = SessionId(0);
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{:x}", self.0)
    }
}

/// Error for a text that is not a session id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a session id: expected 32 hexadecimal digits, as returned by session/open")]
pub struct InvalidSessionId;

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        let (high, low) = text.as_bytes().split_first_chunk::<16>().ok_or(InvalidSessionId)?;
        let low = low.try_into().map_err(|_| InvalidSessionId)?;
        match (sixteen_digits(high), sixteen_digits(low)) {
            (Some(high), Some(low)) => Ok(SessionId(u128::from(high) << 64 | u128::from(low))),
            _ => Err(InvalidSessionId),
        }
    }
}

/// Parses 16 hexadecimal digits. Fast, because every operation names its session.
fn sixteen_digits(digits: &[u8; 16]) -> Option<u64> {
    digits.iter().try_fold(0, |number, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        Some(number << 4 | u64::from(digit))
    })
}

/// A fencing token: greater than the token of every earlier grant of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Token(pub u64);

impl Token {
    /// Tokens stay below 2^53, so that JSON clients read them exactly (S1).
    pub const MAX: Token = Token((1 << 53) - 1);
}

/// A waiting request's number. Tickets rise, so their order is the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// The time of the cell, in microseconds since it was formed. Monotonic; does not advance without a leader (S2). Not a
/// wall clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct CellTime(pub u64);

impl CellTime {
    /// The time this many milliseconds later.
    pub fn plus_ms(self, ms: u64) -> CellTime {
        CellTime(self.0.saturating_add(ms.saturating_mul(1_000)))
    }

    /// Whole milliseconds since an earlier time; zero if it is not earlier.
    pub fn ms_since(self, earlier: CellTime) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000
    }

    pub(crate) fn as_nanoseconds(self) -> u128 {
        u128::from(self.0) * 1_000
    }
}

macro_rules! shown_as_number {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    )*};
}
shown_as_number!(Token Ticket CellTime);
