//! At the entrance of every HTTP request, gRPC among them: who is it? The answer goes with the request, and the calls
//! are made in that name.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, request};
use axum::response::Response;
use lockkeeper_proto::tls::Visitor;
use tower_service::Service;

use super::delivery::Unsent;
use super::prompt::Prompt;
use super::seldom::Seldom;
use super::{grpc, http};
use crate::calls::Calls;
use crate::failure::Failure;
use crate::security::doors::Members;
use crate::security::{Who, admission, guard};

/// The path of everything that members ask each other.
const MEMBERS_PATH: &str = "/lockkeeper.peer.v1.";
/// The path of everything that clients ask over gRPC.
const CLIENTS_PATH: &str = "/lockkeeper.v1.";
/// Calls whose messages come for as long as the caller likes.
const STREAMS: [&str; 2] =
    ["/lockkeeper.v1.Lockkeeper/Stream", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"];

/// One connection's way to the routes.
#[derive(Clone)]
pub(super) struct Reception {
    pub(super) router: axum::Router,
    pub(super) calls: Calls,
    pub(super) visitor: Arc<Visitor>,
    pub(super) members: Members,
    pub(super) seldom: Arc<Seldom>,
    pub(super) unsent: Unsent,
}

impl Reception {
    fn recognise(&self, parts: &request::Parts) -> Result<Who, Failure> {
        if parts.uri.path().starts_with(MEMBERS_PATH) {
            return match self.members.include(&self.visitor) {
                true => Ok(Who::Nobody),
                false => {
                    turn_away_stranger(&self.calls, &self.seldom);
                    Err(Failure::Forbidden(
                        "only members of the cell may ask this: show a certificate of the authority that --peer-ca \
                         names"
                            .to_owned(),
                    ))
                }
            };
        }
        let by_certificate = || self.calls.guard().by_certificate(&self.visitor);
        let who = match parts.headers.get(AUTHORIZATION) {
            None => by_certificate(),
            Some(header) => match header.to_str().ok().and_then(guard::bearer) {
                Some(token) => self.calls.with_token(token)?.who().clone(),
                // Somebody's own scheme, meant for a proxy perhaps.
                None => match by_certificate() {
                    Who::Nobody if self.calls.guard().is_strict() => return Err(admission::not_known()),
                    who => who,
                },
            },
        };
        // Before the message is read: it may be large, and on a stream there is no end of them.
        if who == Who::Nobody && parts.uri.path().starts_with(CLIENTS_PATH) {
            self.calls.must_be_known()?;
        }
        Ok(who)
    }
}

/// Somebody who is no member wants to be heard as one.
pub(super) fn turn_away_stranger(calls: &Calls, seldom: &Seldom) {
    calls.shared().metrics.turned_away("not_a_member");
    if seldom.now() {
        tracing::warn!("somebody without a member's certificate asks as if it were one");
    }
}

impl<B> Service<Request<B>> for Reception
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
        let kind = parts.headers.get(CONTENT_TYPE);
        let grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        match self.recognise(&parts) {
            Ok(who) => {
                parts.extensions.insert(who);
                let path = parts.uri.path();
                let answer = match grpc && !STREAMS.contains(&path) && !path.starts_with(MEMBERS_PATH) {
                    true => self.router.call(Request::from_parts(parts, Prompt::new(body))),
                    false => self.router.call(Request::from_parts(parts, body)),
                };
                let unsent = self.unsent.clone();
                Box::pin(async move { answer.await.map(|response| unsent.follow(response)) })
            }
            Err(failure) => {
                let mut response = match grpc {
                    true => grpc::status(failure).into_http(),
                    false => http::refuse(failure),
                };
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                Box::pin(std::future::ready(Ok(response)))
            }
        }
    }
}
