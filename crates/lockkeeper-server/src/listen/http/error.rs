//! Failures as JSON bodies of the contract: `{"error": {"code", "message", ...}}`.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lockkeeper_api::{ErrorBody, WrongAnswer};
use lockkeeper_core::Refusal;

use crate::failure::Failure;

/// Default of the `Retry-After` header, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// An error response, with the reason and the next step.
#[derive(Debug)]
pub(super) struct Error {
    failure: Failure,
    status: StatusCode,
}

impl Error {
    /// Returns an error for an invalid request; the text says what to change.
    pub(super) fn invalid(text: impl Into<String>) -> Error {
        Failure::Invalid(text.into()).into()
    }

    /// Replaces the status of the failure's code, where HTTP has a more specific one.
    pub(super) fn with_status(self, status: StatusCode) -> Error {
        Error { status, ..self }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let status =
            StatusCode::from_u16(failure.code().http_status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        Error { failure, status }
    }
}

impl From<WrongAnswer> for Error {
    fn from(wrong: WrongAnswer) -> Error {
        Failure::from(wrong).into()
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Failure::Refused(refusal).into()
    }
}

/// Returns the body of a failure, for places where it is not a response of its own.
pub(super) fn body(failure: &Failure) -> ErrorBody {
    ErrorBody { error: failure.into() }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(body(&self.failure))).into_response();
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            let seconds = match &self.failure {
                Failure::Overload { retry_after_ms, .. } => retry_after_ms.div_ceil(1_000),
                _ => RETRY_AFTER_S,
            };
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::Token;
    use serde_json::{Value, json};

    fn shown(failure: Failure) -> (u16, Value) {
        let error = Error::from(failure);
        let body = serde_json::to_value(super::body(&error.failure)).unwrap();
        (error.status.as_u16(), body["error"].clone())
    }

    #[test]
    fn details_come_with_their_codes() {
        let (status, error) = shown(Refusal::StaleToken { last_token: Token(7) }.into());
        assert_eq!((status, &error["code"], &error["last_token"]), (412, &json!("stale_token"), &json!(7)));
        let (status, error) = shown(Refusal::VersionMismatch { version: 0 }.into());
        assert_eq!((status, &error["version"]), (412, &json!(0)));
        let (status, error) = shown(Failure::NotLeader { leader: Some("b:7420".to_owned()) });
        assert_eq!((status, &error["leader"]), (421, &json!("b:7420")));
        let (_, error) = shown(Failure::NotLeader { leader: None });
        assert!(error.as_object().unwrap().contains_key("leader"));
        let (status, error) = shown(Failure::unknown("the leader changed"));
        assert_eq!((status, &error["may_have_happened"]), (503, &json!(true)));
        let (_, error) = shown(Refusal::Busy { lock: "a".into() }.into());
        assert_eq!((&error["lock"], error.get("last_token")), (&json!("a"), None));
    }

    #[test]
    fn retry_after_header_is_set_when_a_retry_makes_sense() {
        let response = Error::from(Failure::Unavailable("x".to_owned())).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        let overload = Failure::Overload { why: "x".into(), retry_after_ms: 1_200 };
        let response = Error::from(overload.clone()).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "2", "whole seconds, never too early");
        let (status, error) = shown(overload);
        assert_eq!((status, &error["code"], &error["retry_after_ms"]), (429, &json!("limit"), &json!(1_200)));
        let response = Error::from(Refusal::SessionLost).into_response();
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
}
