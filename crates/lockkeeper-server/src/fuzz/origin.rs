//! The decision of the request filter on requests of other sites, compared with a second reading of the head.

use std::sync::OnceLock;

use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, Version};

use crate::api::Api;
use crate::{Node, NodeConfig};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FOREIGN: &str = "evil.example";

/// A request that names the origin of another site never passes, whatever the rest of its head is.
pub(super) fn check(data: &[u8]) {
    let Some(head) = head_of(data) else { return };
    let passes = |head: &Parts| api().is_some_and(|api| crate::listen::fuzz_passes_filter(head, api));
    if passes(&head) {
        assert!(!is_foreign(&head), "the request of another site passes: {head:?}");
    }
    if hosts_of(&head).iter().any(|host| host.contains(FOREIGN)) {
        return;
    }
    for origin in ["http://evil.example", "https://evil.example:7420", "null"] {
        let mut foreign = head.clone();
        foreign.headers.remove(FETCH_SITE);
        foreign.headers.insert(ORIGIN, HeaderValue::from_static(origin));
        assert!(!passes(&foreign), "a request with the origin {origin} passes: {foreign:?}");
        foreign.headers.insert(FETCH_SITE, HeaderValue::from_static("cross-site"));
        assert!(!passes(&foreign) || is_link(&foreign), "a cross-site request passes: {foreign:?}");
    }
}

/// Parses a line with the method and the target, then one for each header.
fn head_of(data: &[u8]) -> Option<Parts> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let (method, target) = first.split_once(' ')?;
    let version = if data.len().is_multiple_of(2) { Version::HTTP_2 } else { Version::HTTP_11 };
    let mut builder = Request::builder().method(method).uri(target).version(version);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        builder = builder.header(&line[..colon], &line[colon + 1..]);
    }
    Some(builder.body(()).ok()?.into_parts().0)
}

/// The hosts that a request names, in lower case.
fn hosts_of(head: &Parts) -> Vec<String> {
    let in_headers =
        head.headers.get_all(HOST).iter().map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let hosts = head.uri.authority().map(|authority| authority.to_string()).into_iter().chain(in_headers);
    hosts.map(|host| host.trim_end_matches('.').to_ascii_lowercase()).collect()
}

fn text(head: &Parts, name: &HeaderName) -> Option<String> {
    head.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase())
}

/// Whether a browser sends this head for a page of another site.
fn is_foreign(head: &Parts) -> bool {
    match (text(head, &FETCH_SITE), text(head, &ORIGIN)) {
        (Some(site), _) => !["same-origin", "none"].contains(&site.as_str()) && !is_link(head),
        (None, Some(origin)) => {
            let from = origin.split_once("://").map(|(_, from)| from.trim_end_matches('.').to_owned());
            from.is_none_or(|from| !hosts_of(head).contains(&from))
        }
        (None, None) => false,
    }
}

/// Whether a user follows a link to the console, which opens it from any site.
fn is_link(head: &Parts) -> bool {
    head.method == Method::GET && head.uri.path() == "/"
}

/// The API of a node in memory that is never driven: the filter only asks it for the members.
fn api() -> Option<&'static Api> {
    static API: OnceLock<Option<Api>> = OnceLock::new();
    API.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let node = runtime.block_on(Node::open(NodeConfig::in_memory())).ok()?;
        let api = node.api().clone();
        // Both live as long as the process.
        std::mem::forget((node, runtime));
        Some(api)
    })
    .as_ref()
}
