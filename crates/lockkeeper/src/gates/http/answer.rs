//! Refusals in the shape of the HTTP contract: `{"error": {"code", "message", ...}}`.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use lockkeeper_api::{Code, ErrorBody};

use crate::error::Error;

pub(super) fn refusal(error: &Error) -> Response<Full<Bytes>> {
    let code = match error.contract_code() {
        Some(code @ (Code::StaleToken | Code::Invalid | Code::TooLarge | Code::Limit)) => code,
        // A gate cannot decide without the last token, whatever the reason is.
        Some(
            Code::Busy
            | Code::Timeout
            | Code::NotHeld
            | Code::SessionLost
            | Code::VersionMismatch
            | Code::Deadlock
            | Code::Wounded
            | Code::Died
            | Code::Unsupported
            | Code::Unauthenticated
            | Code::Forbidden
            | Code::NotLeader
            | Code::Unavailable,
        )
        | None => Code::Unavailable,
    };
    with_status(error, StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE))
}

/// A refusal with a status that may differ from the one of the error's code.
pub(super) fn with_status(error: &Error, status: StatusCode) -> Response<Full<Bytes>> {
    let unavailable = status == StatusCode::SERVICE_UNAVAILABLE;
    let code = if unavailable { None } else { error.contract_code() }.unwrap_or(Code::Unavailable);
    let mut details = lockkeeper_api::Error::new(code, error.to_string());
    if let Error::StaleToken { last_token } = error {
        details.last_token = Some(last_token.0);
    }
    details.may_have_happened = unavailable.then_some(false);
    let body = serde_json::to_vec(&ErrorBody { error: details }).unwrap_or_default();
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if unavailable || status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
