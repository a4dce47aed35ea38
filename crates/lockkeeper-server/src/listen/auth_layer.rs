//! At the entrance of every HTTP request, gRPC among them: who is it? The answer goes with the request, and the calls
//! are made in that name.

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
use super::delivery::Unsent;
use super::gate::{self, Protocol};
use super::gathered::{GatheredMessages, MessageLimits};
use super::metered::{self, MeteredRequest};
use super::requests::{ConnectionState, MemberProof};
use super::{LogThrottle, grpc, http};
use lockkeeper_core::Right;

use crate::api::Api;
use crate::budget::{ByteBudget, ConnectionBudget};
use crate::failure::Failure;
use crate::security::hosts::AllowedHosts;
use crate::security::port_security::Members;
use crate::security::{Who, admission, guard};
use crate::session::decode_limits::check_frame;
use crate::turns::TurnPermit;

/// The path of everything that members ask each other.
const MEMBERS_PATH: &str = "/lockkeeper.peer.v1.";
/// The path of everything that clients ask over gRPC.
const CLIENTS_PATH: &str = "/lockkeeper.v1.";
/// Health checks, which are answered also when there is no place for clients.
const HEALTH_PATHS: [&str; 4] = ["/livez", "/readyz", "/health", "/grpc.health.v1.Health/Check"];
const SERVICE_PATH: &str = "/lockkeeper.v1.Lockkeeper/";
/// The client's stream of frames.
const STREAM_PATH: &str = "/lockkeeper.v1.Lockkeeper/Stream";
const REFLECTION_PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// Calls whose answers are streams: made as the client reads.
const STREAMED_ANSWERS: [&str; 3] = [
    "/lockkeeper.v1.Lockkeeper/ObserveElection",
    "/lockkeeper.v1.Lockkeeper/SaveSnapshot",
    "/grpc.health.v1.Health/Watch",
];
/// Largest message of a member on a connection that has not proved yet that it is a member's.
const UNPROVEN_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// When to come back to a node that has no place.
const FULL_RETRY_MS: u64 = 1_000;

/// One connection's way to the routes.
#[derive(Clone)]
pub(super) struct AuthLayer {
    pub(super) router: axum::Router,
    pub(super) api: Api,
    pub(super) visitor: Arc<Visitor>,
    pub(super) members: Members,
    pub(super) hosts: Arc<AllowedHosts>,
    pub(super) state: Arc<ConnectionState>,
    pub(super) unsent: Unsent,
    pub(super) budget: ConnectionBudget,
}

impl AuthLayer {
    fn authenticate(&self, parts: &request::Parts) -> Result<Who, Failure> {
        if parts.uri.path().starts_with(MEMBERS_PATH) {
            return match self.members.include(&self.visitor) {
                true => Ok(Who::Nobody),
                false => {
                    turn_away_stranger(&self.api);
                    Err(Failure::Forbidden(
                        "only members of the cell may ask this: show a certificate of the authority that --peer-ca \
                         names"
                            .to_owned(),
                    ))
                }
            };
        }
        let by_certificate = || self.api.guard().by_certificate(&self.visitor);
        let who = match parts.headers.get(AUTHORIZATION) {
            None => by_certificate(),
            Some(header) => match header.to_str().ok().and_then(guard::bearer) {
                Some(token) => self.api.with_token(token)?.who().clone(),
                // Somebody's own scheme, meant for a proxy perhaps.
                None => match by_certificate() {
                    Who::Nobody if self.api.is_enforced() => return Err(admission::not_known()),
                    who => who,
                },
            },
        };
        // Before the message is read: it may be large, and on a stream there is no end of them.
        if who == Who::Nobody && parts.uri.path().starts_with(CLIENTS_PATH) {
            self.api.must_be_known()?;
        }
        Ok(who)
    }
}

impl AuthLayer {
    /// Moves the connection to the place that its request shows it to be for. When clients have taken all of theirs, health
    /// checks, members and administrators are served on; where callers are not authenticated, nobody can be told to be an
    /// administrator. Members have their place when they have proved that they are members ([`MemberProof`]).
    fn assign_kind(&self, path: &str, who: &Who) -> Result<(), Failure> {
        self.state.note_request(*who != Who::Nobody);
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
        let api = self.api.on_behalf_of(who.clone());
        let moved = match api.is_enforced() && api.may_all(Right::Admin, "").is_ok() {
            true => permit.move_to(Kind::Administrator),
            false => Err("connections"),
        };
        moved.inspect_err(|&why| self.api.shared().metrics.turned_away(why)).map_err(full)
    }
}

/// What the messages of a streamed request may be. None for requests of a single message.
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

/// Whether the cost of a request grows with what is in the table: such requests wait for their turn (`crate::turns`).
/// Streams do not: they are never done.
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

/// Waits until a request may be carried out that takes long.
async fn turn_of(parts: &request::Parts, budget: &ByteBudget) -> Option<TurnPermit> {
    match grows_with_table(parts.uri.path()) {
        true => Some(budget.read_turn().await),
        false => None,
    }
}

/// One request over HTTP within the budget of its connection.
async fn answer_http<B>(mut router: axum::Router, request: Request<B>, budget: &ByteBudget) -> Response
where
    B: axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let (parts, body) = request.into_parts();
    if is_read(&parts) {
        budget.room().await;
        if let Err(failure) = budget.check_read() {
            return http::refuse(failure);
        }
    }
    let permit = turn_of(&parts, budget).await;
    let body = MeteredRequest::new(body, budget.clone());
    let Ok(response) = router.call(Request::from_parts(parts, body)).await;
    drop(permit);
    metered::meter(response, budget).await
}

/// One gRPC call within the budget of its connection.
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
        if is_read(&parts) {
            budget.room().await;
            budget.check_read()?;
        }
        Ok(collected)
    };
    let (body, charge) = match collected.await {
        Ok(collected) => collected,
        Err(failure) => return grpc::status(failure).into_http(),
    };
    // It is decoded at once, and the call may then wait for as long as its caller likes.
    drop(charge);
    let permit = turn_of(&parts, budget).await;
    let Ok(response) = router.call(Request::from_parts(parts, body)).await;
    drop(permit);
    let response = grpc::blame_malformed_message(response);
    match is_streamed {
        true => metered::meter_stream(response, budget),
        false => metered::meter_whole(response, budget).await,
    }
}

/// Somebody who is no member wants to be heard as one.
pub(super) fn turn_away_stranger(api: &Api) {
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
        let protocol = match gate::check(&parts, &self.hosts, &self.api) {
            Ok(protocol) => protocol,
            Err(refusal) => return Box::pin(std::future::ready(Ok(refusal.answer(&self.api)))),
        };
        let authenticated = self.authenticate(&parts);
        match authenticated.and_then(|who| self.assign_kind(parts.uri.path(), &who).map(|()| who)) {
            Ok(who) => {
                let budget = self.api.on_behalf_of(who.clone()).budget(&self.budget);
                parts.extensions.insert(who);
                parts.extensions.insert(self.budget.clone());
                let (path, router, unsent) = (parts.uri.path(), self.router.clone(), self.unsent.clone());
                let is_members = path.starts_with(MEMBERS_PATH);
                if let Some(limits) = streamed_messages(path) {
                    let mut router = router;
                    if is_members {
                        parts.extensions.insert(MemberProof::new(self.state.clone()));
                    }
                    let answer = match is_members && self.state.is_members() {
                        true => router.call(Request::from_parts(parts, body)),
                        false => {
                            let body = GatheredMessages::new(body, limits, budget);
                            router.call(Request::from_parts(parts, body))
                        }
                    };
                    return Box::pin(async move { answer.await.map(|response| unsent.follow(response)) });
                }
                let request = Request::from_parts(parts, body);
                Box::pin(async move {
                    let answered = match protocol {
                        Protocol::Http => answer_http(router, request, &budget).await,
                        Protocol::Grpc => answer_grpc(router, request, &budget).await,
                    };
                    Ok(unsent.follow(answered))
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
