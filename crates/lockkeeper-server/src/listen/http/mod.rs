//! HTTP and JSON, for scripts and for languages without a library of ours. One file for each noun; docs/http.md
//! tells the story and `openapi.json` describes every call.
//!
//! Strict in what it reads: an unknown field, a wrong type or a repeated key is refused with a message that
//! names it, because a lock taken with a misspelt option is worse than none.

mod access;
mod base64;
mod body;
mod console;
mod election;
mod error;
mod lock;
mod member;
mod metrics;
mod observe;
mod on_behalf;
mod openapi;
mod query;
mod rate;
mod session;
mod snapshot;
mod status;
mod token;
mod value;
mod with_grant;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};

use tracing::{Instrument, Span};

use crate::calls::Calls;
use crate::failure::Failure;
use crate::trace;
use error::Error;

/// The HTTP API of a node.
///
/// It also answers for every path that nobody else on the port has: 404 in our shape, or unimplemented for
/// a gRPC client.
pub fn router(calls: Calls) -> Router {
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
        .with_state(calls)
}

/// Bodies and queries, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(data: &[u8]) {
    fn one<T: serde::de::DeserializeOwned>(data: &[u8]) {
        drop(body::parse::<T>(data, data.len().is_multiple_of(2)));
    }
    one::<lock::AcquireOne>(data);
    one::<lock::AcquireAll>(data);
    one::<lock::Release>(data);
    one::<session::Open>(data);
    one::<value::Put>(data);
    one::<election::Campaign>(data);
    one::<rate::Take>(data);
    one::<token::Check>(data);
    one::<access::Enable>(data);
    one::<access::Rule>(data);
    one::<access::QuotaWish>(data);
    if let Ok(text) = std::str::from_utf8(data) {
        if let Some(decoded) = base64::decode(text) {
            assert_eq!(base64::decode(&base64::encode(&decoded)), Some(decoded));
        }
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

/// One call. Each path has one method.
struct Route {
    #[cfg_attr(not(test), allow(dead_code, reason = "the test compares it with the OpenAPI document"))]
    method: &'static str,
    path: &'static str,
    handler: MethodRouter<Calls>,
}

/// Every call of the API, in the order of the contract.
fn routes() -> Vec<Route> {
    vec![
        post("/v1/session/open", session::open),
        post("/v1/session/keepalive", session::keep_alive),
        post("/v1/session/close", session::close),
        post("/v1/lock/acquire", lock::acquire),
        post("/v1/lock/acquire_all", lock::acquire_all),
        post("/v1/lock/release", lock::release),
        post("/v1/lock/cancel", lock::cancel),
        post("/v1/lock/force_release", lock::force_release),
        get("/v1/lock", lock::one),
        get("/v1/locks", lock::page),
        get("/v1/history", observe::history),
        get("/v1/audit", observe::audit),
        get("/v1/top", observe::top),
        get("/v1/graph", observe::graph),
        get("/v1/sessions", observe::sessions),
        post("/v1/token/check", token::check),
        post("/v1/value/put", value::put),
        post("/v1/value/delete", value::delete),
        get("/v1/value", value::one),
        post("/v1/election/campaign", election::campaign),
        post("/v1/election/resign", election::resign),
        post("/v1/election/handover", election::hand_over),
        get("/v1/election", election::one),
        get("/v1/election/observe", election::observe),
        post("/v1/rate/take", rate::take),
        get("/v1/status", status::status),
        get("/v1/members", member::list),
        post("/v1/member/add", member::add),
        post("/v1/member/remove", member::remove),
        get("/v1/snapshot", snapshot::save),
        get("/v1/access", access::list),
        post("/v1/access/enable", access::enable),
        post("/v1/access/grant", access::grant),
        post("/v1/access/revoke", access::revoke),
        post("/v1/access/token/create", access::create_token),
        post("/v1/access/token/revoke", access::revoke_token),
        post("/v1/access/quota", access::quota),
        get("/livez", status::alive),
        get("/readyz", status::ready),
        get("/health", status::ready),
        get("/version", status::version),
        get("/metrics", metrics::metrics),
        get("/openapi.json", openapi::document),
        get("/v1/openapi.json", openapi::document),
        get("/", console::page),
        get("/console/events", console::events),
        get("/console/{file}", console::file),
    ]
}

fn get<H, T>(path: &'static str, handler: H) -> Route
where
    H: Handler<T, Calls>,
    T: 'static,
{
    Route { method: "get", path, handler: axum::routing::get(handler) }
}

fn post<H, T>(path: &'static str, handler: H) -> Route
where
    H: Handler<T, Calls>,
    T: 'static,
{
    Route { method: "post", path, handler: axum::routing::post(handler) }
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
