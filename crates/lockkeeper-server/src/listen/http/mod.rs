//! HTTP and JSON, for scripts and for languages without a client library. `routes.rs` is the table of all calls; their
//! bodies and answers are the types of `lockkeeper-api`. See docs/http.md.
//!
//! Input is strict: an unknown field, a wrong type or a repeated key is refused with a message that names it, because a lock
//! taken with a misspelt option is worse than none.

mod body;
mod call;
mod caller_api;
mod console;
mod error;
#[cfg(feature = "fuzz")]
mod fuzz;
mod metrics;
mod observe;
mod openapi;
mod query;
mod routes;
mod snapshot;
mod status;

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tracing::{Instrument, Span};

use self::error::Error;
#[cfg(feature = "fuzz")]
pub(crate) use self::fuzz::fuzz;
pub use self::openapi::document as openapi_document;
use self::routes::{Route, routes};
use crate::api::Api;
use crate::failure::Failure;
use crate::listen::calls::Cost;
use crate::trace;

/// Returns the HTTP API of a node.
///
/// It also handles every path that has no other handler on the port: 404 with an error body, or `unimplemented` for a gRPC
/// client.
pub fn router(api: Api) -> Router {
    let mut router = Router::new();
    for Route { path, handler, .. } in routes() {
        router = router.route(path, handler);
    }
    router
        .method_not_allowed_fallback(wrong_method)
        // A route instead of a fallback: the gRPC router has a fallback, and two of them cannot be merged.
        .route("/{*path}", any(unknown_path))
        .layer(from_fn(trace_call))
        .layer(map_response(add_headers))
        .with_state(api)
}

/// Returns the cost of the call with this path, if the route table has it.
pub(super) fn cost(path: &str) -> Option<Cost> {
    static COSTS: LazyLock<HashMap<&str, Cost>> =
        LazyLock::new(|| routes().into_iter().map(|route| (route.path, route.cost)).collect());
    COSTS.get(path).copied()
}

/// Returns the response to a request that is refused before it reaches a handler.
pub(super) fn refuse(failure: Failure) -> Response {
    Error::from(failure).into_response()
}

/// Returns the same response with another status than that of the failure's code.
pub(super) fn refuse_with(failure: Failure, status: StatusCode) -> Response {
    Error::from(failure).with_status(status).into_response()
}

/// Runs a request in a tracing span.
async fn trace_call(request: Request, next: Next) -> Response {
    // Only POST calls are traced: reads do not go through the log, and pages and metrics belong to no trace.
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
        return tonic::Status::unimplemented(format!("unknown method {path}")).into_http();
    }
    let hint = match path.trim_end_matches('/') {
        shorter if shorter != path && routes().iter().any(|route| route.path == shorter) => {
            format!("did you mean {shorter}?")
        }
        _ => "/openapi.json lists every path".to_owned(),
    };
    Error::invalid(format!("unknown path {path}: {hint}")).with_status(StatusCode::NOT_FOUND).into_response()
}

/// Answers a request with a wrong method. The router adds the `Allow` header.
async fn wrong_method(method: Method, uri: Uri) -> Error {
    Error::invalid(format!("{} does not support {method}: see the Allow header", uri.path()))
        .with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Forbids caching and content type sniffing.
async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
