//! `lockkeeper.v1` over gRPC: every operation as a call of its own, the stream, health and reflection.

use std::pin::Pin;

use axum::http::HeaderValue;
use axum::response::Response as AxumResponse;
use futures_util::{Stream, StreamExt};
use lockkeeper_api::v1::lockkeeper_server::{Lockkeeper, LockkeeperServer};
use lockkeeper_api::{FILE_DESCRIPTOR_SET, v1};
use lockkeeper_core::{Command, Reply, Token};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::budget::ConnectionBudget;
use crate::calls::Calls;
use crate::failure::Failure;
use crate::raft::network::PeerService;
use crate::security::Who;
use crate::session::stream::ClientStream;
use crate::undelivered::UndeliveredGrant;
use crate::wire;

/// Largest message that is taken in.
pub(super) const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// In front of each message: a flag and its length.
pub(super) const MESSAGE_PREFIX_BYTES: usize = 5;
/// The same for health and reflection, which are asked before it is known who asks: names of services and symbols.
pub(super) const PUBLIC_MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// How the library's message about bytes that are not a message begins, percent-encoded.
const MALFORMED: &[u8] = b"failed%20to%20decode%20Protobuf%20message";

/// The gRPC services as routes.
pub(super) fn router(calls: Calls, peers: &PeerService) -> axum::Router {
    let health = super::health::Service::server(calls.clone());
    let health = health.max_decoding_message_size(PUBLIC_MESSAGE_BYTES_MAX);
    let service = LockkeeperServer::new(Service { calls }).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut routes = tonic::service::Routes::new(service).add_service(peers.server()).add_service(health);
    match tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
    {
        Ok(reflection) => {
            routes = routes.add_service(reflection.max_decoding_message_size(PUBLIC_MESSAGE_BYTES_MAX));
        }
        Err(error) => tracing::error!(%error, "gRPC reflection is not available"),
    }
    routes.into_axum_router()
}

struct Service {
    calls: Calls,
}

/// The failure as a gRPC status; the code of the contract travels in the header `lockkeeper-code`.
pub(super) fn status(failure: Failure) -> Status {
    let code = match failure.code() {
        "busy" | "not_held" | "stale_token" | "version_mismatch" => Code::FailedPrecondition,
        "deadlock" | "died" | "wounded" => Code::Aborted,
        "timeout" => Code::DeadlineExceeded,
        "session_lost" => Code::NotFound,
        "unsupported" => Code::Unimplemented,
        "invalid" | "too_large" => Code::InvalidArgument,
        "limit" => Code::ResourceExhausted,
        "unauthenticated" => Code::Unauthenticated,
        "forbidden" => Code::PermissionDenied,
        // Many clients repeat UNAVAILABLE by themselves, which is wrong for what may have happened.
        _ if failure.may_have_happened() => Code::Unknown,
        _ => Code::Unavailable,
    };
    let mut status = Status::new(code, failure.to_string());
    status.metadata_mut().insert("lockkeeper-code", MetadataValue::from_static(failure.code()));
    let details = failure.to_wire();
    let headers = [
        ("lockkeeper-leader", details.leader),
        ("lockkeeper-last-token", number(details.last_token)),
        ("lockkeeper-version", number(details.version)),
        ("lockkeeper-retry-after-ms", number(details.retry_after_ms)),
    ];
    for (name, value) in headers {
        if let (false, Ok(value)) = (value.is_empty(), value.parse()) {
            status.metadata_mut().insert(name, value);
        }
    }
    status
}

fn number(value: u64) -> String {
    if value == 0 { String::new() } else { value.to_string() }
}

/// Says `invalid` for a message that cannot be decoded: the library blames the node (INTERNAL), but it is the caller who
/// sent it.
pub(super) fn blame_malformed_message(mut response: AxumResponse) -> AxumResponse {
    let headers = response.headers_mut();
    let is =
        |name: &str, start: &[u8]| headers.get(name).is_some_and(|value| value.as_bytes().starts_with(start));
    if is("grpc-status", b"13") && is("grpc-message", MALFORMED) {
        headers.insert("grpc-status", HeaderValue::from(Code::InvalidArgument as i32));
        headers.insert("lockkeeper-code", HeaderValue::from_static("invalid"));
    }
    response
}

impl Service {
    /// The operations in the name of whoever asks.
    fn by<T>(&self, request: &Request<T>) -> Calls {
        // The reception has put it there; whoever came another way has shown nothing.
        let who = request.extensions().get::<Who>().cloned().unwrap_or(Who::Nobody);
        self.calls.on_behalf_of(who)
    }
}

async fn command(calls: &Calls, command: Command) -> Result<Reply, Status> {
    calls.command(command).await.map_err(status)
}

async fn grant(calls: &Calls, command: Command) -> Result<Response<v1::Grant>, Status> {
    let Command::Acquire(request) = command else {
        return Err(status(Failure::Invalid("this is not an acquire".to_owned())));
    };
    let grant = calls.acquire_for_answer(request).await.map_err(status)?;
    Ok(with_grant(wire::grant(&grant), grant))
}

/// The grant is beside its answer until that is sent: see `delivery.rs`.
fn with_grant<T>(answer: T, grant: UndeliveredGrant) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(grant);
    response
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Lockkeeper for Service {
    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Answer<v1::OpenSessionResponse> {
        let calls = self.by(&request);
        let request = request.into_inner();
        let (session, ttl_ms) =
            calls.open_session(request.ttl_ms, request.owner.into()).await.map_err(status)?;
        Ok(Response::new(v1::OpenSessionResponse { session: session.to_string(), ttl_ms }))
    }

    async fn keep_alive(&self, request: Request<v1::KeepAliveRequest>) -> Answer<v1::KeepAliveResponse> {
        let calls = self.by(&request);
        let session = wire::session(&request.into_inner().session).map_err(status)?;
        match calls.keep_alive(session).map_err(status)? {
            Some(ttl_ms) => Ok(Response::new(v1::KeepAliveResponse { ttl_ms })),
            None => Err(status(Failure::Refused(lockkeeper_core::Refusal::SessionLost))),
        }
    }

    async fn close_session(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Answer<v1::CloseSessionResponse> {
        let calls = self.by(&request);
        let session = wire::session(&request.into_inner().session).map_err(status)?;
        command(&calls, Command::CloseSession { session }).await?;
        Ok(Response::new(v1::CloseSessionResponse {}))
    }

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Answer<v1::Grant> {
        let calls = self.by(&request);
        grant(&calls, wire::acquire_command(request.into_inner()).map_err(status)?).await
    }

    async fn acquire_all(&self, request: Request<v1::AcquireAllRequest>) -> Answer<v1::Grant> {
        let calls = self.by(&request);
        grant(&calls, wire::acquire_all_command(request.into_inner()).map_err(status)?).await
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Answer<v1::ReleaseResponse> {
        let calls = self.by(&request);
        command(&calls, wire::release_command(request.into_inner()).map_err(status)?).await?;
        Ok(Response::new(v1::ReleaseResponse {}))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Answer<v1::CancelResponse> {
        let calls = self.by(&request);
        command(&calls, wire::cancel_command(request.into_inner()).map_err(status)?).await?;
        Ok(Response::new(v1::CancelResponse {}))
    }

    async fn get_lock(&self, request: Request<v1::GetLockRequest>) -> Answer<v1::LockState> {
        let calls = self.by(&request);
        let view = calls.lock(&request.into_inner().lock).map_err(status)?;
        Ok(Response::new(wire::lock_state(&view)))
    }

    async fn list_locks(&self, request: Request<v1::ListLocksRequest>) -> Answer<v1::ListLocksResponse> {
        let calls = self.by(&request);
        let request = request.into_inner();
        let (locks, more) = calls.locks(&request.prefix, &request.after, request.limit).map_err(status)?;
        Ok(Response::new(v1::ListLocksResponse { locks: locks.iter().map(wire::lock_state).collect(), more }))
    }

    async fn check_token(&self, request: Request<v1::CheckTokenRequest>) -> Answer<v1::CheckTokenResponse> {
        let calls = self.by(&request);
        calls.check_token(&request.into_inner()).map(Response::new).map_err(status)
    }

    async fn force_release(
        &self,
        request: Request<v1::ForceReleaseRequest>,
    ) -> Answer<v1::ForceReleaseResponse> {
        let calls = self.by(&request);
        match command(&calls, wire::force_release_command(request.into_inner())).await? {
            Reply::Forced { released, last_token } => {
                Ok(Response::new(v1::ForceReleaseResponse { released, last_token: last_token.0 }))
            }
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    async fn get_history(&self, request: Request<v1::GetHistoryRequest>) -> Answer<v1::LockHistory> {
        let calls = self.by(&request);
        calls.history(&request.into_inner()).map(Response::new).map_err(status)
    }

    async fn get_audit(&self, request: Request<v1::GetAuditRequest>) -> Answer<v1::Audit> {
        let calls = self.by(&request);
        calls.audit(&request.into_inner()).map(Response::new).map_err(status)
    }

    async fn get_top(&self, request: Request<v1::GetTopRequest>) -> Answer<v1::Top> {
        let calls = self.by(&request);
        calls.top(&request.into_inner()).map(Response::new).map_err(status)
    }

    async fn get_wait_graph(&self, request: Request<v1::GetWaitGraphRequest>) -> Answer<v1::WaitGraph> {
        let calls = self.by(&request);
        calls.wait_graph(&request.into_inner()).map(Response::new).map_err(status)
    }

    async fn put_value(&self, request: Request<v1::PutValueRequest>) -> Answer<v1::PutValueResponse> {
        let calls = self.by(&request);
        match command(&calls, wire::put_value_command(request.into_inner())).await? {
            Reply::Put { version } => Ok(Response::new(v1::PutValueResponse { version })),
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    async fn get_value(&self, request: Request<v1::GetValueRequest>) -> Answer<v1::Value> {
        let calls = self.by(&request);
        calls.value(&request.into_inner().key).map(Response::new).map_err(status)
    }

    async fn delete_value(
        &self,
        request: Request<v1::DeleteValueRequest>,
    ) -> Answer<v1::DeleteValueResponse> {
        let calls = self.by(&request);
        command(&calls, wire::delete_value_command(request.into_inner())).await?;
        Ok(Response::new(v1::DeleteValueResponse {}))
    }

    async fn campaign(&self, request: Request<v1::CampaignRequest>) -> Answer<v1::CampaignResponse> {
        let calls = self.by(&request);
        let request = request.into_inner();
        let candidate = wire::candidate(&request).map_err(status)?;
        let grant =
            calls.campaign(&request.election, request.value.into(), candidate).await.map_err(status)?;
        Ok(with_grant(v1::CampaignResponse { epoch: grant.token.0 }, grant))
    }

    async fn resign(&self, request: Request<v1::ResignRequest>) -> Answer<v1::ResignResponse> {
        let calls = self.by(&request);
        let request = request.into_inner();
        let session = wire::session(&request.session).map_err(status)?;
        calls.resign(session, &request.election, Token(request.epoch)).await.map_err(status)?;
        Ok(Response::new(v1::ResignResponse {}))
    }

    async fn hand_over(&self, request: Request<v1::HandOverRequest>) -> Answer<v1::HandOverResponse> {
        let calls = self.by(&request);
        calls.hand_over(request.into_inner()).await.map_err(status)?;
        Ok(Response::new(v1::HandOverResponse {}))
    }

    async fn get_election(&self, request: Request<v1::GetElectionRequest>) -> Answer<v1::Election> {
        let calls = self.by(&request);
        calls.election(&request.into_inner().election).map(Response::new).map_err(status)
    }

    type ObserveElectionStream = Pin<Box<dyn Stream<Item = Result<v1::Election, Status>> + Send>>;

    async fn observe_election(
        &self,
        request: Request<v1::ObserveElectionRequest>,
    ) -> Answer<Self::ObserveElectionStream> {
        let calls = self.by(&request);
        let election = request.into_inner().election;
        calls.election(&election).map_err(status)?;
        let seen = calls.observe(election).map(|seen| seen.map_err(status));
        Ok(Response::new(Box::pin(seen)))
    }

    async fn take_rate(&self, request: Request<v1::TakeRateRequest>) -> Answer<v1::TakeRateResponse> {
        let calls = self.by(&request);
        match command(&calls, wire::take_rate_command(request.into_inner()).map_err(status)?).await? {
            Reply::Rate { allowed, retry_after_ms } => {
                Ok(Response::new(v1::TakeRateResponse { allowed, retry_after_ms }))
            }
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let calls = self.by(&request);
        calls.must_be_known().map_err(status)?;
        Ok(Response::new(calls.status()))
    }

    async fn list_members(&self, request: Request<v1::ListMembersRequest>) -> Answer<v1::MembersResponse> {
        let calls = self.by(&request);
        calls.must_be_known().map_err(status)?;
        Ok(Response::new(v1::MembersResponse { members: calls.status().members }))
    }

    async fn add_member(&self, request: Request<v1::AddMemberRequest>) -> Answer<v1::MembersResponse> {
        let calls = self.by(&request);
        let request = request.into_inner();
        let members = calls.add_member(request.node_id, &request.address).await.map_err(status)?;
        Ok(Response::new(v1::MembersResponse { members }))
    }

    async fn remove_member(&self, request: Request<v1::RemoveMemberRequest>) -> Answer<v1::MembersResponse> {
        let calls = self.by(&request);
        let members = calls.remove_member(request.into_inner().node_id).await.map_err(status)?;
        Ok(Response::new(v1::MembersResponse { members }))
    }

    async fn get_access(&self, request: Request<v1::GetAccessRequest>) -> Answer<v1::AccessState> {
        self.by(&request).access().map(Response::new).map_err(status)
    }

    async fn enable_access(&self, request: Request<v1::EnableAccessRequest>) -> Answer<v1::NewAccessToken> {
        let made = self.by(&request).enable_access(&request.into_inner().identity).await.map_err(status)?;
        Ok(Response::new(made))
    }

    async fn grant_access(&self, request: Request<v1::GrantAccessRequest>) -> Answer<v1::AccessDone> {
        self.by(&request).grant_access(request.into_inner()).await.map_err(status)?;
        Ok(Response::new(v1::AccessDone {}))
    }

    async fn revoke_access(&self, request: Request<v1::RevokeAccessRequest>) -> Answer<v1::AccessDone> {
        self.by(&request).revoke_access(request.into_inner()).await.map_err(status)?;
        Ok(Response::new(v1::AccessDone {}))
    }

    async fn create_access_token(
        &self,
        request: Request<v1::CreateAccessTokenRequest>,
    ) -> Answer<v1::NewAccessToken> {
        let made = self.by(&request).create_token(&request.into_inner().identity).await.map_err(status)?;
        Ok(Response::new(made))
    }

    async fn revoke_access_token(
        &self,
        request: Request<v1::RevokeAccessTokenRequest>,
    ) -> Answer<v1::AccessDone> {
        self.by(&request).revoke_token(&request.into_inner().id).await.map_err(status)?;
        Ok(Response::new(v1::AccessDone {}))
    }

    async fn set_quota(&self, request: Request<v1::SetQuotaRequest>) -> Answer<v1::AccessDone> {
        let calls = self.by(&request);
        calls.set_quota(request.into_inner().quota.unwrap_or_default()).await.map_err(status)?;
        Ok(Response::new(v1::AccessDone {}))
    }

    type SaveSnapshotStream = Pin<Box<dyn Stream<Item = Result<v1::SnapshotChunk, Status>> + Send>>;

    async fn save_snapshot(
        &self,
        request: Request<v1::SaveSnapshotRequest>,
    ) -> Answer<Self::SaveSnapshotStream> {
        let calls = self.by(&request);
        let backup = calls.backup().await.map_err(status)?;
        let (total_bytes, index) = (backup.bytes, backup.through);
        let chunks = backup.chunks.map(move |data| match data {
            Ok(data) => Ok(v1::SnapshotChunk { data: data.into(), total_bytes, index }),
            Err(error) => Err(Status::unavailable(format!("the snapshot cannot be read: {error}"))),
        });
        Ok(Response::new(Box::pin(chunks)))
    }

    type StreamStream = Pin<Box<dyn Stream<Item = Result<v1::ServerFrame, Status>> + Send>>;

    async fn stream(&self, request: Request<Streaming<v1::ClientFrame>>) -> Answer<Self::StreamStream> {
        let calls = self.by(&request);
        // The reception has put it there, so that all streams of a connection have one budget.
        let budget = request.extensions().get::<ConnectionBudget>().cloned().unwrap_or_default();
        let stream = ClientStream::within(&budget, request.into_inner(), calls);
        Ok(Response::new(Box::pin(stream.map(Ok))))
    }
}
