//! Filters every request over HTTP, whatever its protocol, in front of all routes. It decides by the head of a request alone,
//! before the body is read and before the caller is authenticated:
//!
//! 1. The request names one host (RFC 9112, section 3.2). If callers are not authenticated, it must be a known name of this
//!    node, so that no web page can reach the node under the page's own name (DNS rebinding).
//! 2. A request of a browser comes from this node's own pages. Browsers send `Sec-Fetch-Site` or `Origin`; other programs
//!    send neither.
//! 3. gRPC is `application/grpc` over HTTP/2. A browser can send neither without a preflight request, whereas it sends a
//!    `text/plain` POST over HTTP/1.1 for any page.
//! 4. gRPC requests are for gRPC methods. The answer to a gRPC call may be collected as a whole, and that to an HTTP call may
//!    never end.

use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, StatusCode, Version, request};
use axum::response::Response;

use super::{grpc, http};
use crate::api::Api;
use crate::failure::Failure;
use crate::security::hosts::{AllowedHosts, host_of, normalize};

/// Path prefixes of all gRPC services. Package names have dots; the first segment of an HTTP API path has none.
const GRPC_PATHS: [&str; 3] = ["/lockkeeper.v1.", "/lockkeeper.peer.v1.", "/grpc."];
/// The page that other sites may link to.
const CONSOLE_PATH: &str = "/";

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http,
}

/// A refused request.
#[derive(Debug)]
pub(super) struct Refusal {
    protocol: Protocol,
    failure: Failure,
    status: StatusCode,
    /// For the metrics.
    reason: &'static str,
}

impl Refusal {
    pub(super) fn answer(self, api: &Api) -> Response {
        api.shared().metrics.turned_away(self.reason);
        match self.protocol {
            Protocol::Grpc => grpc::status(self.failure).into_http(),
            Protocol::Http => http::refuse_with(self.failure, self.status),
        }
    }
}

/// Checks the head of a request.
pub(super) fn check(head: &request::Parts, hosts: &AllowedHosts, api: &Api) -> Result<Protocol, Refusal> {
    let protocol = protocol_of(head)?;
    let refuse = |failure, status, reason| Err(Refusal { protocol, failure, status, reason });
    let host = match named_host(head) {
        Ok(host) => host,
        Err(what) => {
            return refuse(Failure::Invalid(what.to_owned()), StatusCode::BAD_REQUEST, "host");
        }
    };
    if let Some(host) = &host
        && !hosts.allow(host)
        && !is_a_members(host, api)
    {
        let text = format!(
            "this node does not serve requests for the host \"{}\": use its IP address or a name in --cell, or start \
             the node with --allowed-hosts {0}",
            host_of(host)
        );
        return refuse(Failure::Forbidden(text), StatusCode::FORBIDDEN, "host");
    }
    if !is_same_origin(head, host.as_deref()) {
        let text = "web pages of other sites may not send requests to this node: open the node's own console, or send \
                    the request without the headers Origin and Sec-Fetch-Site if you are not a browser";
        return refuse(Failure::Forbidden(text.to_owned()), StatusCode::FORBIDDEN, "other_site");
    }
    Ok(protocol)
}

fn protocol_of(head: &request::Parts) -> Result<Protocol, Refusal> {
    let is_grpc_type = head.headers.get(CONTENT_TYPE).is_some_and(|kind| is_grpc(kind.as_bytes()));
    let is_grpc_path = GRPC_PATHS.iter().any(|start| head.uri.path().starts_with(start));
    match (is_grpc_type, head.version == Version::HTTP_2) {
        (true, true) if is_grpc_path => Ok(Protocol::Grpc),
        (true, true) => Err(Refusal {
            protocol: Protocol::Grpc,
            failure: Failure::Unsupported(format!(
                "{} is not a gRPC method: send the request without the content type application/grpc, or call a method \
                 that gRPC reflection lists",
                head.uri.path()
            )),
            status: StatusCode::NOT_FOUND,
            reason: "not_grpc",
        }),
        (false, _) if !is_grpc_path => Ok(Protocol::Http),
        _ => Err(Refusal {
            protocol: Protocol::Http,
            failure: Failure::Invalid(
                "gRPC is served as application/grpc over HTTP/2 only: use a gRPC client, or the HTTP API \
                 (/openapi.json lists its paths)"
                    .to_owned(),
            ),
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            reason: "not_grpc",
        }),
    }
}

/// `application/grpc`, with or without a message format; not `application/grpc-web`.
fn is_grpc(kind: &[u8]) -> bool {
    let rest = kind.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// The one host that a request names; none in HTTP/1.0, which has no such header.
fn named_host(head: &request::Parts) -> Result<Option<String>, &'static str> {
    let in_target = head.uri.authority().map(|authority| Ok(authority.as_str()));
    let in_headers = head.headers.get_all(HOST).iter().map(|host| host.to_str());
    let mut named = None;
    for (place, host) in in_target.into_iter().chain(in_headers).enumerate() {
        let host =
            host.map_err(|_| "the Host header is not a host name: send the name or address of the node")?;
        match &named {
            None => named = Some(normalize(host)),
            // A proxy in front may have checked one of them, and this node would check the other. Two Host headers are refused
            // even if they are equal; HTTP/2 may repeat its :authority as one Host header.
            Some(first) if place > 1 || head.uri.authority().is_none() || *first != normalize(host) => {
                return Err("the request names more than one host: send one Host header");
            }
            Some(_) => {}
        }
    }
    match named {
        Some(host) if host.is_empty() || host.contains('@') => {
            Err("the Host header is not a host name: send the name or address of the node")
        }
        None if head.version > Version::HTTP_10 => Err("the request has no Host header: send one"),
        named => Ok(named),
    }
}

/// Heads of requests, for `crate::fuzz`: an accepted host is one that the request names, and two spellings of a host are the
/// same host.
#[cfg(feature = "fuzz")]
pub(super) fn fuzz(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let (method, target) = first.split_once(' ').unwrap_or(("GET", &first));
    let mut builder = axum::http::Request::builder().method(method.as_bytes()).uri(target);
    if data.len().is_multiple_of(2) {
        builder = builder.version(Version::HTTP_2);
    }
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        builder = builder.header(&line[..colon], line.get(colon + 1..).unwrap_or_default());
    }
    let Ok(request) = builder.body(()) else { return };
    let (head, ()) = request.into_parts();
    drop(protocol_of(&head));
    let host = named_host(&head).ok().flatten();
    if let Some(host) = &host {
        assert_eq!(normalize(&normalize(host)).trim_end_matches('.'), normalize(host).trim_end_matches('.'));
        assert!(!host.is_empty() && host.contains(host_of(host)));
        let known = AllowedHosts::new(std::slice::from_ref(host), false);
        assert!(known.allow(host), "{host:?} is not allowed by its own name");
    }
    is_same_origin(&head, host.as_deref());
}

/// Whether the host is a member's. Members may have joined after this node was started.
fn is_a_members(host: &str, api: &Api) -> bool {
    let host = normalize(host_of(host));
    api.status().members.iter().any(|member| {
        [&member.address, &member.peer_address].iter().any(|address| normalize(host_of(address)) == host)
    })
}

/// Whether a request comes from this node's own pages, from a user or from a program that is not a browser.
fn is_same_origin(head: &request::Parts, host: Option<&str>) -> bool {
    let text =
        |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap_or("?").to_ascii_lowercase());
    // Web pages cannot set or remove this header.
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site.as_str(), "same-origin" | "none") || is_link_to_console(head);
    }
    let Some(origin) = text("origin") else { return true };
    let from = origin.split_once("://").map(|(_, from)| from);
    from.is_some() && from == host
}

/// Whether a user follows a link to the console. The linking page cannot read the answer.
fn is_link_to_console(head: &request::Parts) -> bool {
    let has = |name: &str, value: &str| head.headers.get(name).is_some_and(|found| found == value);
    head.method == Method::GET
        && head.uri.path() == CONSOLE_PATH
        && has("sec-fetch-mode", "navigate")
        && has("sec-fetch-dest", "document")
}
