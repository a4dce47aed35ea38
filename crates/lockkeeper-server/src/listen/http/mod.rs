//! HTTP and JSON, for scripts and for languages without a library of ours. `routes.rs` is the table of all calls; their
//! bodies and answers are the types of `lockkeeper-api`. docs/http.md tells the story.
//!
//! Strict in what it reads: an unknown field, a wrong type or a repeated key is refused with a message that
//! names it, because a lock taken with a misspelt option is worse than none.

mod body;
mod call;
mod console;
mod error;
mod metrics;
mod observe;
mod on_behalf;
mod openapi;
mod query;
mod routes;
mod snapshot;
mod status;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tracing::{Instrument, Span};

use self::error::Error;
pub use self::openapi::document as openapi_document;
use self::routes::{Route, routes};
use crate::api::Api;
use crate::failure::Failure;
use crate::trace;

/// The HTTP API of a node.
///
/// It also answers for every path that nobody else on the port has: 404 in our shape, or unimplemented for
/// a gRPC client.
pub fn router(api: Api) -> Router {
    let mut router = Router::new();
    for Route { path, handler, .. } in routes() {
        router = router.route(path, handler);
    }
    router
        .method_not_allowed_fallback(wrong_method)
        // A route and no fallback: gRPC brings a fallback, and two of them cannot be merged.
        .route("/{*path}", any(unknown_path))
        .layer(from_fn(enter))
        .layer(map_response(add_headers))
        .with_state(api)
}

/// Bodies and queries, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(data: &[u8]) {
    fn one<C: lockkeeper_api::Call + serde::de::DeserializeOwned>(data: &[u8]) {
        if let Ok(call) = body::parse::<C>(data, data.len().is_multiple_of(2)) {
            drop(call.into_request());
        }
    }
    one::<lockkeeper_api::acquire::Acquire>(data);
    one::<lockkeeper_api::acquire::AcquireAll>(data);
    one::<lockkeeper_api::acquire::Release>(data);
    one::<lockkeeper_api::session::OpenSession>(data);
    one::<lockkeeper_api::value::PutValue>(data);
    one::<lockkeeper_api::election::Campaign>(data);
    one::<lockkeeper_api::rate::TakeRate>(data);
    one::<lockkeeper_api::token::CheckToken>(data);
    one::<lockkeeper_api::access::EnableAccess>(data);
    one::<lockkeeper_api::access::AccessRule>(data);
    one::<lockkeeper_api::access::SetQuota>(data);
    if let Ok(text) = std::str::from_utf8(data) {
        query::fuzz(text);
    }
}

/// A refusal before any handler was asked.
pub(super) fn refuse(failure: Failure) -> Response {
    Error::from(failure).into_response()
}

/// The same under another status than the failure's code has.
pub(super) fn refuse_with(failure: Failure, status: StatusCode) -> Response {
    Error::from(failure).with_status(status).into_response()
}

/// What comes first with each request.
async fn enter(request: Request, next: Next) -> Response {
    // Reads go straight to the table, and pages and metrics are none of anybody's trace.
    let span = match *request.method() {
        Method::POST => {
            let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
            trace::http("POST", request.uri().path(), traceparent)
        }
        _ => Span::none(),
    };
    if span.is_disabled() {
        return next.run(request).await;
    }
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    response
}

async fn unknown_path(headers: HeaderMap, uri: Uri) -> Response {
    let path = uri.path();
    if headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented(format!("there is no {path}")).into_http();
    }
    let hint = match path.trim_end_matches('/') {
        shorter if shorter != path && routes().iter().any(|route| route.path == shorter) => {
            format!("did you mean {shorter}?")
        }
        _ => "/openapi.json lists every path".to_owned(),
    };
    Error::invalid(format!("there is nothing at {path}: {hint}"))
        .with_status(StatusCode::NOT_FOUND)
        .into_response()
}

/// The `Allow` header is added by the router.
async fn wrong_method(method: Method, uri: Uri) -> Error {
    Error::invalid(format!("{} does not take {method}: see the Allow header", uri.path()))
        .with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Nothing here may be cached, and nothing may be taken for something else than it says.
async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
