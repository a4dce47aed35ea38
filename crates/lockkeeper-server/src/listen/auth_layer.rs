//! Authenticates every HTTP request, including gRPC, and attaches the principal to it. Handlers make their calls on behalf of
//! that principal.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode, request};
use axum::response::Response;
use lockkeeper_net::tls::Visitor;
use tower_service::Service;

use super::calls::{Cost, GrpcMethod, REFLECTION_PATH, STREAM_PATH};
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
use crate::session::decode_limits::{check_frame, check_request};

/// Path prefix of the gRPC services between members.
const MEMBERS_PATH: &str = "/lockkeeper.peer.v1.";
/// Path prefix of the gRPC services for clients.
const CLIENTS_PATH: &str = "/lockkeeper.v1.";
const SERVICE_PATH: &str = "/lockkeeper.v1.Lockkeeper/";
/// Health checks, which are answered even when all client connections are in use.
const HEALTH_PATHS: [&str; 4] = ["/livez", "/readyz", "/health", "/grpc.health.v1.Health/Check"];
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

type Answering = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

impl AuthLayer {
    /// Answers a call between members. Their messages are limited until the connection is proven to be a member's.
    fn call_by_member<B>(&self, mut parts: request::Parts, body: B, budget: ByteBudget) -> Answering
    where
        B: axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let (state, arrivals) = (self.state.clone(), self.budget.arrivals.clone());
        parts.extensions.insert(MemberProof::new(move || {
            state.note_member();
            arrivals.stop();
        }));
        let mut router = self.router.clone();
        if self.state.is_members() {
            return Box::pin(router.call(Request::from_parts(parts, body)));
        }
        let request = Request::from_parts(parts, body);
        Box::pin(async move { Ok(answer_stream(router, request, budget).await) })
    }

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

/// Returns the limits of the messages of a gRPC call.
fn message_limits(path: &str) -> MessageLimits {
    let any = |bytes_max| MessageLimits { bytes_max, check: |_| Ok(()) };
    match path {
        STREAM_PATH => MessageLimits { bytes_max: grpc::MESSAGE_BYTES_MAX, check: check_frame },
        path if path.starts_with(CLIENTS_PATH) => {
            MessageLimits { bytes_max: grpc::MESSAGE_BYTES_MAX, check: check_request }
        }
        path if path.starts_with(MEMBERS_PATH) => any(UNPROVEN_MESSAGE_BYTES_MAX),
        _ => any(grpc::PUBLIC_MESSAGE_BYTES_MAX),
    }
}

/// Waits until a call may run: its connection is below its budget, and it is its turn if it takes long. Streams do not wait for
/// turns, because they never end.
async fn admit(cost: Cost, budget: &ByteBudget) -> Result<Option<TurnPermit>, Failure> {
    if cost == Cost::Small {
        return Ok(None);
    }
    loop {
        budget.wait_for_room().await;
        let permit = match cost {
            Cost::GrowsWithTable => Some(budget.read_turn().await),
            Cost::Small | Cost::LargeAnswer => None,
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
    let permit = match admit(Cost::of(Protocol::Http, parts.uri.path()), budget).await {
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
    let collected = async {
        let (body, charge) = metered::collect_message(body, budget, message_limits(path)).await?;
        Ok((body, charge, admit(Cost::of(Protocol::Grpc, path), budget).await?))
    };
    let (body, charge, permit) = match collected.await {
        Ok(collected) => collected,
        Err(failure) => return grpc::status(failure).into_http(),
    };
    let is_unary = GrpcMethod::find(path).is_some_and(GrpcMethod::is_unary);
    // The message is decoded at once, and the call may then wait for as long as its caller wants.
    drop(charge);
    let Ok(response) = router.call(Request::from_parts(parts, body)).await;
    let response = grpc::blame_malformed_message(response);
    let response = match is_unary {
        true => metered::meter_whole(response, budget).await,
        false => metered::meter_stream(response, budget),
    };
    // After its answer is counted.
    drop(permit);
    response
}

/// Answers a gRPC call with streamed requests within the budget of its connection.
async fn answer_stream<B>(mut router: axum::Router, request: Request<B>, budget: ByteBudget) -> Response
where
    B: axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let path = request.uri().path();
    let seat = match (path == REFLECTION_PATH).then(|| budget.admit_reflection()).transpose() {
        Ok(seat) => seat,
        Err(failure) => return grpc::status(failure).into_http(),
    };
    let limits = message_limits(path);
    let request = request.map(|body| ReassembledMessages::new(body, limits, budget.clone()));
    let Ok(response) = router.call(request).await;
    let response = grpc::blame_malformed_message(response);
    match seat {
        Some(seat) => metered::meter_reflection(response, &budget, seat),
        None => metered::meter_stream(response, &budget),
    }
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
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        self.budget.arrivals.taken();
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
                let is_known = principal != Principal::Anonymous || !self.api.is_enforced();
                self.budget.arrivals.set_identity(budget.identity(), is_known);
                parts.extensions.insert(principal);
                parts.extensions.insert(self.budget.clone());
                let (router, unsent) = (self.router.clone(), self.unsent.clone());
                let path = parts.uri.path();
                if path.starts_with(MEMBERS_PATH) {
                    return self.call_by_member(parts, body, budget);
                }
                let is_stream = GrpcMethod::find(path).is_some_and(GrpcMethod::has_streamed_requests);
                let request = Request::from_parts(parts, body);
                Box::pin(async move {
                    let answered = match protocol {
                        Protocol::Http => answer_http(router, request, &budget).await,
                        Protocol::Grpc if is_stream => answer_stream(router, request, budget).await,
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
