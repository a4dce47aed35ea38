//! The header `Lockkeeper-Fence: lock=orders/4472;token=42`.

use http::{HeaderMap, HeaderName, HeaderValue};
use lockkeeper_core::limits::NAME_BYTES_MAX;
use lockkeeper_core::{Sequencer, Token, percent};

use crate::error::Error;

/// Name of the header with the lock and token of a request. It may occur several times, once for each lock.
pub const HEADER: HeaderName = HeaderName::from_static("lockkeeper-fence");

/// Maximum number of locks that one request may name.
const FENCES_MAX: usize = 16;

/// Locks and tokens of an admitted request. Handlers find them in the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fences {
    // Invariant: sorted by lock, each lock once. Requests enter several locks in this order.
    list: Vec<(String, Token)>,
}

impl Fences {
    /// Iterates over all locks and tokens, sorted by lock.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Token)> {
        self.list.iter().map(|(lock, token)| (lock.as_str(), *token))
    }

    /// Returns the token for a lock, if the request has one.
    pub fn token(&self, lock: &str) -> Option<Token> {
        self.iter().find(|(known, _)| *known == lock).map(|(_, token)| token)
    }

    /// Parses the headers of a request; `None` if it has no fence.
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Option<Fences>, Error> {
        let mut list = Vec::new();
        for value in headers.get_all(HEADER) {
            let text = value.to_str().map_err(|_| malformed("it is not plain ASCII"))?;
            // Proxies may join several header lines into one. Names contain no spaces: they are percent-encoded.
            for part in text.split(", ") {
                list.push(parse(part.trim())?);
            }
        }
        if list.len() > FENCES_MAX {
            return Err(malformed("it names too many locks"));
        }
        list.sort();
        if list.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(malformed("it names a lock twice"));
        }
        Ok((!list.is_empty()).then_some(Fences { list }))
    }
}

/// Returns the header value for a lock and its token.
///
/// ```
/// use lockkeeper::{Token, gates::http::header_value};
///
/// assert_eq!(header_value("orders/4472", Token(42)), "lock=orders/4472;token=42");
/// assert_eq!(header_value("a;b ü", Token(7)), "lock=a%3Bb%20%C3%BC;token=7");
/// ```
pub fn header_value(lock: &str, token: Token) -> HeaderValue {
    let text = format!("lock={};token={token}", encode(lock));
    // The encoded text is plain ASCII.
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Percent-encodes a name, so that it has no delimiters of the header or of the token file.
pub(super) fn encode(name: &str) -> String {
    percent::encode(name, |_, byte| !b"%;,\"".contains(&byte))
}

pub(super) fn decode(text: &str) -> Option<String> {
    percent::decode(text)
}

fn parse(text: &str) -> Result<(String, Token), Error> {
    if let Ok(sequencer) = text.parse::<Sequencer>() {
        return within_bounds(sequencer.lock.to_string(), sequencer.token);
    }
    let (lock, number) = text
        .strip_prefix("lock=")
        .and_then(|rest| rest.rsplit_once(';'))
        .and_then(|(lock, token)| Some((lock, token.trim().strip_prefix("token=")?)))
        .ok_or_else(|| malformed("it has no lock and token"))?;
    // Fences joined in another way must not be read as one lock with a long name.
    if lock.contains([';', ',', ' ']) {
        return Err(malformed("the lock's name has characters that must be percent-encoded"));
    }
    let lock = decode(lock).ok_or_else(|| malformed("the lock is not correctly percent-encoded"))?;
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed("the token is not a number"));
    }
    let token = number.parse().map(Token).map_err(|_| malformed("the token is not a number"))?;
    within_bounds(lock, token)
}

fn within_bounds(lock: String, token: Token) -> Result<(String, Token), Error> {
    if lock.is_empty() || lock.len() > NAME_BYTES_MAX {
        return Err(malformed("the lock's name is empty or too long"));
    }
    Ok((lock, token))
}

fn malformed(why: &str) -> Error {
    Error::invalid(format!(
        "the header Lockkeeper-Fence is malformed ({why}): send lock=NAME;token=NUMBER, or the sequencer of the grant"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Result<Option<Fences>, Error> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_str(value).unwrap());
        }
        Fences::from_headers(&headers)
    }

    #[test]
    fn both_forms_are_parsed() {
        for text in ["lock=orders/4472;token=42", "lock=orders/4472; token=42", "lk1:42:x:orders/4472"] {
            let fences = of(&[text]).unwrap().unwrap();
            assert_eq!(fences.iter().collect::<Vec<_>>(), [("orders/4472", Token(42))]);
        }
        assert_eq!(of(&[]).unwrap(), None);
        let both = of(&["lock=b;token=2", "lock=a;token=1"]).unwrap().unwrap();
        assert_eq!(both.iter().collect::<Vec<_>>(), [("a", Token(1)), ("b", Token(2))]);
        assert_eq!(of(&["lock=b;token=2, lk1:1:x:a"]).unwrap().as_ref(), Some(&both));
        assert_eq!((both.token("b"), both.token("c")), (Some(Token(2)), None));
    }

    #[test]
    fn every_name_round_trips() {
        for name in ["a", "a;token=9", "ü x", "50%", "a,b", "\"", "\n"] {
            let value = header_value(name, Token(7));
            let fences = of(&[value.to_str().unwrap()]).unwrap().unwrap();
            assert_eq!(fences.token(name), Some(Token(7)), "{name:?}");
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        let long = format!("lock={};token=1", "x".repeat(600));
        for text in [
            "",
            "42",
            "lock=;token=1",
            "lock=a",
            "lock=a;token=",
            "lock=a;token=-1",
            "lock=%zz;token=1",
            "lock=a;token=1,lock=b;token=2",
            "lock=a b;token=2",
            "lock=a;token=+1",
            &long,
        ] {
            assert_eq!(of(&[text]).unwrap_err().code(), "invalid", "{text}");
        }
        assert_eq!(of(&["lock=a;token=1", "lock=a;token=2"]).unwrap_err().code(), "invalid");
        assert_eq!(of(&["lock=a;token=1"; 20]).unwrap_err().code(), "invalid");
    }
}
