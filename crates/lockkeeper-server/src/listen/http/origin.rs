//! A page of another site must not act through a visitor's browser.
//!
//! A node on a developer's machine can be reached by every page that its owner opens, and a `text/plain` POST
//! needs nobody's leave. Browsers say where a request comes from; programs send neither header.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Refuses what changes something and comes from a page of another site.
pub(super) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if reads || is_own(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    let message = "a web page of another site may not do this";
    (StatusCode::FORBIDDEN, Json(json!({"error": {"code": "forbidden", "message": message}}))).into_response()
}

fn is_own(uri: &Uri, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text("origin") else { return true };
    // HTTP/2 has the host in the address.
    let host = uri.authority().map(|authority| authority.as_str()).or_else(|| text("host"));
    let from = origin.split_once("://").map(|(_, host)| host);
    from.is_some() && from == host
}
