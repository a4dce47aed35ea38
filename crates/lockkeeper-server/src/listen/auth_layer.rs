//! Authenticates every HTTP request, including gRPC, and attaches the principal to it. Handlers make their calls on behalf of
//! that principal.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, request};
use axum::response::Response;
use lockkeeper_net::tls::Visitor;
use tower_service::Service;

use super::connection_limiter::Kind;
use super::delivery::UnsentGrants;
use super::http_connection::{ConnectionState, WINDOW_BYTES};
use super::metered::{self, MeteredRequest};
use super::reassembly::{MessageLimits, ReassembledMessages};
use super::request_filter::{self, Protocol};
use super::{grpc, http};
use lockkeeper_core::Right;

use crate::api::Api;
use crate::failure::Failure;
use crate::limits::budget::{ByteBudget, ConnectionBudget};
use crate::limits::log_throttle::LogThrottle;
use crate::limits::turns::TurnPermit;
use crate::raft::network::MemberProof;
use crate::security::hosts::AllowedHosts;
use crate::security::port_security::MemberPolicy;
use crate::security::{Principal, admission, authenticator};
use crate::session::decode_limits::check_frame;

/// Path prefix of the gRPC services between members.
const MEMBERS_PATH: &str = "/lockkeeper.peer.v1.";
/// Path prefix of the gRPC services for clients.
const CLIENTS_PATH: &str = "/lockkeeper.v1.";
/// Health checks, which are answered even when all client connections are in use.
const HEALTH_PATHS: [&str; 4] = ["/livez", "/readyz", "/health", "/grpc.health.v1.Health/Check"];
const SERVICE_PATH: &str = "/lockkeeper.v1.Lockkeeper/";
/// The client's stream of frames.
const STREAM_PATH: &str = "/lockkeeper.v1.Lockkeeper/Stream";
const REFLECTION_PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// Calls with streamed answers, which are produced as the client reads.
const STREAMED_ANSWERS: [&str; 3] = [
    "/lockkeeper.v1.Lockkeeper/ObserveElection",
    "/lockkeeper.v1.Lockkeeper/SaveSnapshot",
    "/grpc.health.v1.Health/Watch",
];
/// Largest message to a member service on a connection that is not proven to be a member's.
const UNPROVEN_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// When a caller should retry if all connections are in use.
const FULL_RETRY_MS: u64 = 1_000;

/// The service of one connection, in front of the routes.
#[derive(Clone)]
pub(super) struct AuthLayer {
    pub(super) router: axum::Router,
    pub(super) api: Api,
    pub(super) visitor: Arc<Visitor>,
    pub(super) members: MemberPolicy,
    pub(super) hosts: Arc<AllowedHosts>,
    pub(super) state: Arc<ConnectionState>,
    pub(super) unsent: UnsentGrants,
    pub(super) budget: ConnectionBudget,
}

impl AuthLayer {
    fn authenticate(&self, parts: &request::Parts) -> Result<Principal, Failure> {
        if parts.uri.path().starts_with(MEMBERS_PATH) {
            return match self.members.admits(&self.visitor) {
                true => Ok(Principal::Anonymous),
                false => {
                    refuse_non_member(&self.api);
                    Err(Failure::Forbidden(
                        "only members of the cell may call this: present a certificate of the CA set with --peer-ca"
                            .to_owned(),
                    ))
                }
            };
        }
        let by_certificate = || self.api.authenticator().by_certificate(&self.visitor);
        let principal = match parts.headers.get(AUTHORIZATION) {
            None => by_certificate(),
            Some(header) => match header.to_str().ok().and_then(authenticator::bearer) {
                Some(token) => self.api.with_token(token)?.principal().clone(),
                // Another scheme, perhaps meant for a proxy.
                None => match by_certificate() {
                    Principal::Anonymous if self.api.is_enforced() => {
                        return Err(admission::unauthenticated());
                    }
                    principal => principal,
                },
            },
        };
        // Checked before the message is read: it may be large, and a stream is unbounded.
        if principal == Principal::Anonymous && parts.uri.path().starts_with(CLIENTS_PATH) {
            self.api.check_authenticated()?;
        }
        Ok(principal)
    }
}

impl AuthLayer {
    /// Assigns a connection its kind by its request. When all client connections are in use, health checks, members and
    /// administrators are still served. Administrators can only be recognized if access control is enforced; on an open node
    /// the requests of operators are served, whoever sends them. Members get their kind once they have proven to be members
    /// ([`MemberProof`]).
    fn assign_kind(&self, path: &str, principal: &Principal) -> Result<(), Failure> {
        self.state.note_request(*principal != Principal::Anonymous);
        let mut permit = self.state.permit();
        let full = |_| Failure::Overload {
            why: "all connections of this node are in use: end idle clients, or raise --connections-max"
                .into(),
            retry_after_ms: FULL_RETRY_MS,
        };
        let is_overflow = permit.kind() == Kind::Overflow;
        if !is_overflow || HEALTH_PATHS.contains(&path) || path.starts_with(MEMBERS_PATH) {
            return Ok(());
        }
        // An open node cannot recognize its operators, but their requests.
        if !self.api.is_enforced() && is_operators(path) {
            // A new member catches up for longer than an overflow connection lives. Without a slot it is served like the others.
            if changes_members(path) {
                let _ = permit.move_to(Kind::Administrator);
            }
            return Ok(());
        }
        let api = self.api.on_behalf_of(principal.clone());
        let moved = match api.is_enforced() && api.check_right_on_all(Right::Admin, "").is_ok() {
            true => permit.move_to(Kind::Administrator),
            false => Err("connections"),
        };
        moved.inspect_err(|&why| self.api.shared().metrics.turned_away(why)).map_err(full)
    }
}

/// Whether an operator needs this request on a node whose client connections are all in use.
fn is_operators(path: &str) -> bool {
    const PATHS: [&str; 4] = ["/v1/status", "/v1/members", "/metrics", "/version"];
    const METHODS: [&str; 2] = ["Status", "ListMembers"];
    changes_members(path)
        || match path.strip_prefix(SERVICE_PATH) {
            Some(method) => METHODS.contains(&method),
            None => PATHS.contains(&path),
        }
}

/// Whether a request adds or removes a member.
fn changes_members(path: &str) -> bool {
    const METHODS: [&str; 2] = ["AddMember", "RemoveMember"];
    match path.strip_prefix(SERVICE_PATH) {
        Some(method) => METHODS.contains(&method),
        None => path.starts_with("/v1/member/"),
    }
}

/// Returns the limits of the messages of a streamed request; none for requests with a single message.
fn streamed_messages(path: &str) -> Option<MessageLimits> {
    let any = |bytes_max| Some(MessageLimits { bytes_max, check: |_| Ok(()) });
    match path {
        STREAM_PATH => Some(MessageLimits { bytes_max: grpc::MESSAGE_BYTES_MAX, check: check_frame }),
        REFLECTION_PATH => any(grpc::PUBLIC_MESSAGE_BYTES_MAX),
        path if path.starts_with(MEMBERS_PATH) => any(UNPROVEN_MESSAGE_BYTES_MAX),
        _ => None,
    }
}

/// Whether the answer to a request may be large.
fn is_read(head: &request::Parts) -> bool {
    let path = head.uri.path();
    match path.strip_prefix(CLIENTS_PATH) {
        Some(method) => {
            let method = method.split('/').nth(1).unwrap_or_default();
            method.starts_with("Get") || method.starts_with("List")
        }
        None => head.method == Method::GET && !HEALTH_PATHS.contains(&path),
    }
}

/// Whether the cost of a request grows with the table: such requests wait for their turn (`crate::limits::turns`). Streams do not
/// wait, because they never end.
fn grows_with_table(path: &str) -> bool {
    const PATHS: [&str; 9] = [
        "/v1/lock",
        "/v1/locks",
        "/v1/history",
        "/v1/audit",
        "/v1/top",
        "/v1/graph",
        "/v1/sessions",
        "/v1/access",
        "/metrics",
    ];
    const METHODS: [&str; 7] =
        ["GetLock", "ListLocks", "GetHistory", "GetAudit", "GetTop", "GetWaitGraph", "GetAccess"];
    match path.strip_prefix(SERVICE_PATH) {
        Some(method) => METHODS.contains(&method),
        None => PATHS.contains(&path),
    }
}

/// Waits until a read may run: its connection is below its budget, and it is its turn if it takes long.
async fn admit(parts: &request::Parts, budget: &ByteBudget) -> Result<Option<TurnPermit>, Failure> {
    if !is_read(parts) {
        return Ok(None);
    }
    loop {
        budget.wait_for_room().await;
        let permit = match grows_with_table(parts.uri.path()) {
            true => Some(budget.read_turn().await),
            false => None,
        };
        // Answers to the reads before this one may have filled the budget meanwhile.
        if budget.has_connection_room() {
            return budget.check_read().map(|()| permit);
        }
    }
}

/// Answers an HTTP request within the budget of its connection.
async fn answer_http<B>(mut router: axum::Router, request: Request<B>, budget: &ByteBudget) -> Response
where
    B: axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let (parts, body) = request.into_parts();
    // While the request waits, hyper keeps what has arrived of its body.
    let unread = (!body.is_end_stream()).then(|| budget.charge_identity(WINDOW_BYTES as usize));
    let permit = match admit(&parts, budget).await {
        Ok(permit) => permit,
        Err(failure) => return http::refuse(failure),
    };
    drop(unread);
    let body = MeteredRequest::new(body, budget.clone());
    let Ok(response) = router.call(Request::from_parts(parts, body)).await;
    let response = metered::meter(response, budget).await;
    // After its answer is counted.
    drop(permit);
    response
}

/// Answers a gRPC call within the budget of its connection.
async fn answer_grpc<B>(mut router: axum::Router, request: Request<B>, budget: &ByteBudget) -> Response
where
    B: axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let bytes_max = match path.starts_with(CLIENTS_PATH) {
        true => grpc::MESSAGE_BYTES_MAX,
        false => grpc::PUBLIC_MESSAGE_BYTES_MAX,
    };
    let is_streamed = STREAMED_ANSWERS.contains(&path);
    let collected = async {
        let collected =
            metered::collect_message(body, budget, bytes_max + grpc::MESSAGE_PREFIX_BYTES).await?;
        Ok((collected, admit(&parts, budget).await?))
    };
    let ((body, charge), permit) = match collected.await {
        Ok(collected) => collected,
        Err(failure) => return grpc::status(failure).into_http(),
    };
    // The message is decoded at once, and the call may then wait for as long as its caller wants.
    drop(charge);
    let Ok(response) = router.call(Request::from_parts(parts, body)).await;
    let response = grpc::blame_malformed_message(response);
    let response = match is_streamed {
        true => metered::meter_stream(response, budget),
        false => metered::meter_whole(response, budget).await,
    };
    // After its answer is counted.
    drop(permit);
    response
}

/// Counts and logs a member's request from a caller that is not a member.
pub(super) fn refuse_non_member(api: &Api) {
    static THROTTLE: LogThrottle = LogThrottle::new();
    api.shared().metrics.turned_away("not_a_member");
    if let Some(suppressed) = THROTTLE.allow() {
        tracing::warn!(suppressed, "refused a member's request from a caller that is not a member");
    }
}

impl<B> Service<Request<B>> for AuthLayer
where
    B: http_body_util::BodyExt + axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let protocol = match request_filter::check(&parts, &self.hosts, &self.api) {
            Ok(protocol) => protocol,
            Err(refusal) => return Box::pin(std::future::ready(Ok(refusal.answer(&self.api)))),
        };
        let authenticated = self.authenticate(&parts);
        match authenticated
            .and_then(|principal| self.assign_kind(parts.uri.path(), &principal).map(|()| principal))
        {
            Ok(principal) => {
                let budget = self.api.on_behalf_of(principal.clone()).budget(&self.budget);
                parts.extensions.insert(principal);
                parts.extensions.insert(self.budget.clone());
                let (path, router, unsent) = (parts.uri.path(), self.router.clone(), self.unsent.clone());
                let is_members = path.starts_with(MEMBERS_PATH);
                if let Some(limits) = streamed_messages(path) {
                    let mut router = router;
                    if is_members {
                        let state = self.state.clone();
                        parts.extensions.insert(MemberProof::new(move || state.note_member()));
                    }
                    let answer = match is_members && self.state.is_members() {
                        true => router.call(Request::from_parts(parts, body)),
                        false => {
                            let body = ReassembledMessages::new(body, limits, budget);
                            router.call(Request::from_parts(parts, body))
                        }
                    };
                    return Box::pin(async move { answer.await.map(|response| unsent.track(response)) });
                }
                let request = Request::from_parts(parts, body);
                Box::pin(async move {
                    let answered = match protocol {
                        Protocol::Http => answer_http(router, request, &budget).await,
                        Protocol::Grpc => answer_grpc(router, request, &budget).await,
                    };
                    Ok(unsent.track(answered))
                })
            }
            Err(failure) => {
                let mut response = match protocol {
                    Protocol::Grpc => grpc::status(failure).into_http(),
                    Protocol::Http => http::refuse(failure),
                };
                if response.status() == StatusCode::UNAUTHORIZED || protocol == Protocol::Grpc {
                    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                }
                Box::pin(std::future::ready(Ok(response)))
            }
        }
    }
}
