//! `lockkeeper.v1` over gRPC: every operation as a unary call, the stream, health and reflection.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use axum::http::HeaderValue;
use axum::response::Response as AxumResponse;
use futures_util::{Stream, StreamExt, TryStreamExt};
use lockkeeper_api::v1::lockkeeper_server::{Lockkeeper, LockkeeperServer};
use lockkeeper_api::{
    Answer as ApiAnswer, FILE_DESCRIPTOR_SET, Request as ApiRequest, WrongAnswer, election_lock, v1,
};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::api::Api;
use crate::failure::Failure;
use crate::limits::budget::ConnectionBudget;
use crate::raft::network::PeerService;
use crate::security::Principal;
use crate::session::stream::ClientStream;

/// Largest message that is accepted.
pub(super) const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Each message is preceded by a flag and its length.
pub(super) const MESSAGE_PREFIX_BYTES: usize = 5;
/// Largest message to health and reflection, which accept unauthenticated callers: names of services and symbols.
pub(super) const PUBLIC_MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// Start of the library's error message for undecodable bytes.
const MALFORMED_MESSAGE: &str = "failed to decode Protobuf message";
/// The same in a header, percent-encoded.
const MALFORMED: &[u8] = b"failed%20to%20decode%20Protobuf%20message";

/// Returns the gRPC services as routes.
pub(super) fn router(api: Api, peers: &PeerService) -> axum::Router {
    let health = super::health::Service::server(api.clone());
    let health = health.max_decoding_message_size(PUBLIC_MESSAGE_BYTES_MAX);
    let service = LockkeeperServer::new(Service { api }).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut routes = tonic::service::Routes::new(service).add_service(peers.server()).add_service(health);
    match tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
    {
        Ok(reflection) => {
            routes = routes.add_service(reflection.max_decoding_message_size(PUBLIC_MESSAGE_BYTES_MAX));
        }
        Err(error) => tracing::error!(%error, "failed to set up gRPC reflection"),
    }
    routes.into_axum_router()
}

struct Service {
    api: Api,
}

/// Converts a failure into a gRPC status. The code of the contract is in the header `lockkeeper-code`.
pub(super) fn status(failure: Failure) -> Status {
    // Many clients retry UNAVAILABLE by themselves, which is wrong if the request may have been carried out.
    let code = match failure.may_have_happened() {
        true => Code::Unknown,
        false => Code::from_i32(failure.code().grpc_status() as i32),
    };
    let error = lockkeeper_api::Error::from(&failure);
    let mut status = Status::new(code, error.message);
    status.metadata_mut().insert("lockkeeper-code", MetadataValue::from_static(error.code.as_str()));
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let headers = [
        ("lockkeeper-leader", error.leader.flatten()),
        ("lockkeeper-last-token", number(error.last_token)),
        ("lockkeeper-version", number(error.version.filter(|version| *version > 0))),
        ("lockkeeper-retry-after-ms", number(error.retry_after_ms)),
    ];
    for (name, value) in headers {
        if let Some(Ok(value)) = value.map(|value| value.parse()) {
            status.metadata_mut().insert(name, value);
        }
    }
    status
}

/// Changes the status for an undecodable message to `invalid`: the library blames the node (INTERNAL), but the caller sent
/// the message.
pub(super) fn blame_malformed_message(mut response: AxumResponse) -> AxumResponse {
    let headers = response.headers_mut();
    let is =
        |name: &str, start: &[u8]| headers.get(name).is_some_and(|value| value.as_bytes().starts_with(start));
    if is("grpc-status", b"13") && is("grpc-message", MALFORMED) {
        headers.insert("grpc-status", HeaderValue::from(Code::InvalidArgument as i32));
        headers.insert("lockkeeper-code", HeaderValue::from_static(lockkeeper_api::Code::Invalid.as_str()));
    }
    response
}

/// Returns the status for an undecodable message of a stream, if this is the library's error for one.
fn malformed(error: &Status) -> Option<Status> {
    let is_malformed = error.code() == Code::Internal && error.message().starts_with(MALFORMED_MESSAGE);
    is_malformed.then(|| status(Failure::Invalid(error.message().to_owned())))
}

impl Service {
    /// Returns the operations on behalf of the caller.
    fn by<T>(&self, request: &Request<T>) -> Api {
        // Set by the auth layer. Without it the caller is not authenticated.
        let principal = request.extensions().get::<Principal>().cloned().unwrap_or(Principal::Anonymous);
        self.api.on_behalf_of(principal)
    }

    /// Answers a unary call.
    async fn call<Q, A>(&self, request: Request<Q>) -> Answer<A>
    where
        ApiRequest: TryFrom<Q, Error: Into<Failure>>,
        A: TryFrom<ApiAnswer, Error = WrongAnswer>,
    {
        let api = self.by(&request);
        let request = ApiRequest::try_from(request.into_inner()).map_err(|error| status(error.into()))?;
        let answered = api.call(request).await.map_err(status)?;
        let (answer, undelivered) = answered.into_parts().map_err(status)?;
        let mut response = Response::new(answer);
        // The grant travels with its answer until that is sent: see `delivery.rs`.
        if let Some(grant) = undelivered {
            response.extensions_mut().insert(grant);
        }
        Ok(response)
    }

    async fn observe_election(
        &self,
        request: Request<v1::ObserveElectionRequest>,
    ) -> Answer<OutgoingStream<v1::Election>> {
        let (api, budget) = (self.by(&request), connection_budget(&request));
        let lock = election_lock(&request.into_inner().election).map_err(|error| status(error.into()))?;
        api.election(&lock).map_err(status)?;
        let seat = api.budget(&budget).admit_observer().map_err(status)?;
        let seen = api.observe(lock, seat).map(|seen| seen.map(v1::Election::from).map_err(status));
        Ok(Response::new(Box::pin(seen)))
    }

    async fn save_snapshot(
        &self,
        request: Request<v1::SaveSnapshotRequest>,
    ) -> Answer<OutgoingStream<v1::SnapshotChunk>> {
        let backup = self.by(&request).backup().await.map_err(status)?;
        let (total_bytes, index) = (backup.bytes, backup.through);
        let chunks = backup.chunks.map(move |data| match data {
            Ok(data) => Ok(v1::SnapshotChunk { data: data.into(), total_bytes, index }),
            Err(error) => Err(Status::unavailable(format!("failed to read the snapshot: {error}"))),
        });
        Ok(Response::new(Box::pin(chunks)))
    }

    async fn stream(
        &self,
        request: Request<Streaming<v1::ClientFrame>>,
    ) -> Answer<OutgoingStream<v1::ServerFrame>> {
        let (api, budget) = (self.by(&request), connection_budget(&request));
        let failure = Arc::new(OnceLock::new());
        let reported = failure.clone();
        let frames = request.into_inner().inspect_err(move |error| drop(reported.set(error.clone())));
        let stream = ClientStream::within(&budget, frames, api);
        // A malformed message ends the stream. The caller learns why, as from a unary call.
        let reason = futures_util::stream::once(async move { failure.get().and_then(malformed).map(Err) });
        Ok(Response::new(Box::pin(stream.map(Ok).chain(reason.filter_map(std::future::ready)))))
    }
}

/// Returns the budget of the request's connection. Set by the auth layer, so that all streams of a connection share one.
fn connection_budget<T>(request: &Request<T>) -> ConnectionBudget {
    request.extensions().get::<ConnectionBudget>().cloned().unwrap_or_default()
}

type Answer<T> = Result<Response<T>, Status>;
type OutgoingStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Implements the service from the names, requests and answers of the unary calls.
macro_rules! service {
    ($($name:ident($request:ident) -> $answer:ident;)*) => {
        #[tonic::async_trait]
        impl Lockkeeper for Service {
            $(
                async fn $name(&self, request: Request<v1::$request>) -> Answer<v1::$answer> {
                    self.call(request).await
                }
            )*

            type ObserveElectionStream = OutgoingStream<v1::Election>;

            async fn observe_election(
                &self,
                request: Request<v1::ObserveElectionRequest>,
            ) -> Answer<Self::ObserveElectionStream> {
                Service::observe_election(self, request).await
            }

            type SaveSnapshotStream = OutgoingStream<v1::SnapshotChunk>;

            async fn save_snapshot(
                &self,
                request: Request<v1::SaveSnapshotRequest>,
            ) -> Answer<Self::SaveSnapshotStream> {
                Service::save_snapshot(self, request).await
            }

            type StreamStream = OutgoingStream<v1::ServerFrame>;

            async fn stream(
                &self,
                request: Request<Streaming<v1::ClientFrame>>,
            ) -> Answer<Self::StreamStream> {
                Service::stream(self, request).await
            }
        }
    };
}

lockkeeper_api::unary_calls!(service);
