//! Refusals in the shape of the HTTP contract: `{"error": {"code", "message", ...}}`.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

use crate::error::Error;

pub(super) fn refusal(error: &Error) -> Response<Full<Bytes>> {
    let status = match error {
        Error::StaleToken { .. } => StatusCode::PRECONDITION_FAILED,
        Error::Invalid(_) => StatusCode::BAD_REQUEST,
        Error::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        Error::Limit(_) => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    with_status(error, status)
}

/// HTTP has words of its own for some.
pub(super) fn with_status(error: &Error, status: StatusCode) -> Response<Full<Bytes>> {
    let unavailable = status == StatusCode::SERVICE_UNAVAILABLE;
    let code = if unavailable { "unavailable" } else { error.code() };
    let mut details = json!({"code": code, "message": error.to_string()});
    if let Error::StaleToken { last_token } = error {
        details["last_token"] = json!(last_token.0);
    }
    if unavailable {
        details["may_have_happened"] = json!(false);
    }
    let mut response = Response::new(Full::from(json!({ "error": details }).to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if unavailable || status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
