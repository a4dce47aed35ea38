//! `Lockkeeper-Fence: lock=orders/4472;token=42`

use http::{HeaderMap, HeaderName, HeaderValue};
use lockkeeper_core::limits::NAME_BYTES_MAX;
use lockkeeper_core::{Sequencer, Token, percent};

use crate::error::Error;

/// The header that says under which lock a request comes. It may be there several times, once for each lock.
pub const HEADER: HeaderName = HeaderName::from_static("lockkeeper-fence");

/// Locks that one request may name.
const FENCES_MAX: usize = 16;

/// The locks and tokens of a request that the layer has let in; the handler finds them among the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fences {
    // Invariant: sorted by lock, each lock once. All who take several take them in this order.
    list: Vec<(String, Token)>,
}

impl Fences {
    /// All of them, by the name of the lock.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Token)> {
        self.list.iter().map(|(lock, token)| (lock.as_str(), *token))
    }

    /// The token of a lock, if the request came under it.
    pub fn token(&self, lock: &str) -> Option<Token> {
        self.iter().find(|(known, _)| *known == lock).map(|(_, token)| token)
    }

    /// What a request says; `None` if it says nothing.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Fences>, Error> {
        let mut list = Vec::new();
        for value in headers.get_all(HEADER) {
            let text = value.to_str().map_err(|_| malformed("it is not plain ASCII"))?;
            // Those on the way may make one line of several. Names have no blanks: they are percent-encoded.
            for part in text.split(", ") {
                list.push(parse(part.trim())?);
            }
        }
        if list.len() > FENCES_MAX {
            return Err(malformed("it is there too many times"));
        }
        list.sort();
        if list.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(malformed("it names a lock twice"));
        }
        Ok((!list.is_empty()).then_some(Fences { list }))
    }
}

/// The value of the header for a lock and its token.
///
/// ```
/// use lockkeeper::{Token, gates::http::header_value};
///
/// assert_eq!(header_value("orders/4472", Token(42)), "lock=orders/4472;token=42");
/// assert_eq!(header_value("a;b ü", Token(7)), "lock=a%3Bb%20%C3%BC;token=7");
/// ```
pub fn header_value(lock: &str, token: Token) -> HeaderValue {
    let text = format!("lock={};token={token}", encode(lock));
    // What was encoded is plain ASCII.
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// A name without anything that means something else in a header or a line.
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
    // Several that were joined in another way must not pass for one lock with a long name.
    if lock.contains([';', ',', ' ']) {
        return Err(malformed("the lock's name has characters that must be percent-encoded"));
    }
    let lock = decode(lock).ok_or_else(|| malformed("the lock is not percent-encoded as it should be"))?;
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
        "the header Lockkeeper-Fence makes no sense ({why}): write lock=NAME;token=NUMBER, or the sequencer of the grant"
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
        Fences::of(&headers)
    }

    #[test]
    fn both_forms_are_understood() {
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
    fn every_name_comes_through() {
        for name in ["a", "a;token=9", "ü x", "50%", "a,b", "\"", "\n"] {
            let value = header_value(name, Token(7));
            let fences = of(&[value.to_str().unwrap()]).unwrap().unwrap();
            assert_eq!(fences.token(name), Some(Token(7)), "{name:?}");
        }
    }

    #[test]
    fn nonsense_is_told() {
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
