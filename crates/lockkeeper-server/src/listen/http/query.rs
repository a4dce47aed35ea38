//! Reads the query of a GET: known parameters only, each at most once.

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::Error;

/// The parameters of a query.
pub(super) struct Query<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for Query<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Query<T>, Error> {
        parse(&parts.uri).map(Query)
    }
}

/// Parses a query.
pub(super) fn parse<T: DeserializeOwned>(uri: &Uri) -> Result<T, Error> {
    if !is_utf8(uri.query().unwrap_or_default()) {
        // Lossy decoding would produce another name, which may be an existing lock.
        return Err(Error::invalid("invalid query: it is not UTF-8 after decoding its %-escapes"));
    }
    match axum::extract::Query::try_from_uri(uri) {
        Ok(axum::extract::Query(value)) => Ok(value),
        Err(rejection) => {
            let what = std::error::Error::source(&rejection).map(ToString::to_string);
            let what = what.unwrap_or_else(|| rejection.body_text());
            Err(Error::invalid(format!("invalid query: {what}")))
        }
    }
}

fn is_utf8(query: &str) -> bool {
    let mut decoded = Vec::with_capacity(query.len());
    let mut rest = query.as_bytes();
    while let [byte, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    std::str::from_utf8(&decoded).is_ok()
}

#[cfg(test)]
mod tests {
    use super::is_utf8;

    #[test]
    fn escapes_must_be_utf8() {
        for good in ["", "name=a%20b", "name=%C3%A4", "name=100%", "name=%zz"] {
            assert!(is_utf8(good), "{good}");
        }
        for bad in ["name=%ff", "name=%C3", "name=a%c3&b=%a4"] {
            assert!(!is_utf8(bad), "{bad}");
        }
    }
}
