//! Reads a JSON body: bounded in size, time and depth, and strict in its fields.

use axum::Json;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use bytes::Bytes;
use http_body_util::BodyExt;
use lockkeeper_api::value::Object;
use serde::de::DeserializeOwned;

use super::error::Error;
use crate::failure::Failure;
use crate::limits::deadlines::MESSAGE_WITHIN;

/// Largest body. Four times the largest value, to leave room for JSON escapes.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// How much of a too large body is read and discarded, so that the sender gets the answer instead of a connection reset.
const DRAINED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Memory reserved before any of a body has arrived.
const RESERVED_BYTES: usize = 4 * 1024;

/// The JSON object in a body.
pub(super) struct Body<T>(pub(super) T);

impl<T, S> FromRequest<S> for Body<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = Error;

    async fn from_request(request: Request, _state: &S) -> Result<Body<T>, Error> {
        let is_form = request
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.starts_with("multipart/") || kind.contains("form-urlencoded"));
        let bytes = match tokio::time::timeout(MESSAGE_WITHIN, read(request)).await {
            Ok(read) => read?,
            Err(_) => return Err(too_slow()),
        };
        parse(&bytes, is_form).map(Body)
    }
}

fn too_slow() -> Error {
    let text = format!("the body did not arrive within {} s: nothing was done", MESSAGE_WITHIN.as_secs());
    Error::invalid(text).with_status(StatusCode::REQUEST_TIMEOUT)
}

fn too_large() -> Error {
    let text = format!("the body is larger than {BODY_BYTES_MAX} bytes, the limit");
    Failure::TooLarge(text).into()
}

async fn read(request: Request) -> Result<Bytes, Error> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let announced = announced.and_then(|length| length.parse::<usize>().ok()).unwrap_or(0);
    // With `Expect: 100-continue` nothing was sent yet.
    let expects_continue = request.headers().contains_key(EXPECT);
    if announced > DRAINED_BYTES_MAX || announced > BODY_BYTES_MAX && expects_continue {
        return Err(too_large());
    }
    let mut body = request.into_body();
    // The announced length is only a claim: memory grows with the received bytes.
    let mut bytes = Vec::with_capacity(announced.min(RESERVED_BYTES));
    let mut arrived = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::invalid(format!("the body ended early: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        arrived += data.len();
        if arrived > DRAINED_BYTES_MAX {
            break;
        }
        if arrived <= BODY_BYTES_MAX {
            bytes.extend_from_slice(&data);
        }
    }
    if arrived > BODY_BYTES_MAX {
        return Err(too_large());
    }
    Ok(bytes.into())
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8], is_form: bool) -> Result<T, Error> {
    if bytes.trim_ascii().is_empty() {
        return Err(Error::invalid("the body is empty: send a JSON object"));
    }
    // The error of `Json` names the path of the invalid field.
    match Json::<Object<T>>::from_bytes(bytes) {
        Ok(Json(Object(value))) => Ok(value),
        Err(rejection) => {
            let what = std::error::Error::source(&rejection).map(ToString::to_string);
            let what = what.unwrap_or_else(|| rejection.body_text());
            let looks_like_a_form = is_form && bytes.trim_ascii_start().first() != Some(&b'{');
            let hint = if looks_like_a_form { "; send a JSON object, not a form" } else { "" };
            Err(Error::invalid(format!("invalid body: {what}{hint}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Sample {
        name: String,
        count: Option<u64>,
    }

    fn refused(body: &str) -> String {
        format!("{:?}", parse::<Sample>(body.as_bytes(), false).unwrap_err())
    }

    #[test]
    fn refusal_names_the_invalid_field() {
        for (body, named) in [
            ("", "empty"),
            (" \n", "empty"),
            ("{", "EOF"),
            ("[\"a\", 1]", "expected a JSON object"),
            ("\"a\"", "expected a JSON object"),
            ("{}", "missing field `name`"),
            (r#"{"name": null}"#, "name: invalid type: null"),
            (r#"{"name": "a", "count": -1}"#, "count: invalid value: integer `-1`"),
            (r#"{"name": "a", "count": 1.5}"#, "count: invalid type: floating point"),
            (r#"{"name": "a", "count": 18446744073709551616}"#, "count: invalid type: floating point"),
            (r#"{"name": "a", "count": NaN}"#, "expected value"),
            (r#"{"name": "a", "count": "1"}"#, "count: invalid type: string"),
            (r#"{"name": "a", "nmae": "b"}"#, "unknown field `nmae`, expected `name` or `count`"),
            (r#"{"name": "a", "name": "b"}"#, "duplicate field `name`"),
            (r#"{"name": "a"} x"#, "trailing characters"),
            (r#"{"name": "\ud800"}"#, "name: "),
        ] {
            let text = refused(body);
            assert!(text.contains(named), "{body}: {text}");
        }
        assert!(parse::<Sample>(b"{\"name\": \"\xff\"}", false).is_err());
        let form = parse::<Sample>(b"name=a", true).unwrap_err();
        assert!(format!("{form:?}").contains("not a form"));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |key: &str| format!("{{\"{key}\": {}", "[".repeat(100_000));
        refused(&deep("name"));
        refused(&deep("other"));
        refused(&"[".repeat(100_000));
    }

    #[test]
    fn null_is_absent() {
        let sample: Sample = parse(br#"{"name": "a", "count": null}"#, false).unwrap();
        assert_eq!(sample.count, None);
    }
}
