//! openraft's client of a member. Each replication and each heartbeat has its own client; all clients of a member share its
//! connection.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient as Grpc;
use lockkeeper_api::peer::peer_request::Kind;
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::error::Unreachable;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError};
use openraft::network::{Backoff, RPCOption, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::append::Appends;
use super::link::{Link, LinkAnswer};
use super::links::Links;
use super::{MESSAGE_BYTES_MAX, backoff, codec, transfer};
use crate::raft::snapshot::SnapshotImage;
use crate::raft::types::{Member, TypeConfig, Vote};

pub(super) type Result<T> = std::result::Result<T, RPCError<TypeConfig>>;

/// Client of one member.
#[derive(Debug)]
pub(crate) struct PeerClient {
    pub(super) links: Arc<Links>,
    pub(super) link: Arc<Link>,
    target: u64,
    member: Member,
    /// Used for snapshots.
    grpc: Option<Grpc<Channel>>,
}

impl PeerClient {
    pub(super) fn new(links: Arc<Links>, target: u64, member: Member) -> PeerClient {
        let link = links.get_or_open(target, &member);
        PeerClient { links, link, target, member, grpc: None }
    }

    pub(super) fn unreachable(&self, why: impl std::fmt::Display) -> Unreachable<TypeConfig> {
        let text = format!("node {} at {}: {why}", self.target, self.member.peer);
        Unreachable::new(&std::io::Error::other(text))
    }

    pub(super) fn failed(&self, why: impl std::fmt::Display) -> RPCError<TypeConfig> {
        RPCError::Unreachable(self.unreachable(why))
    }

    /// Converts a refusal of the member.
    pub(super) fn refused(&self, status: &Status) -> Unreachable<TypeConfig> {
        if status.code() == Code::FailedPrecondition {
            // Retries don't help: an operator has to resolve it.
            tracing::error!(node = self.target, address = %self.member.peer, why = status.message(),
                "a member refuses requests of this node");
        }
        self.unreachable(status.message())
    }

    pub(super) fn grpc(&mut self) -> std::result::Result<Grpc<Channel>, Unreachable<TypeConfig>> {
        if let Some(grpc) = &self.grpc {
            return Ok(grpc.clone());
        }
        let shared = &self.links.shared;
        let channel = shared.dialer.connect_lazily(&self.member.peer, &shared.timing);
        let grpc = Grpc::new(channel.map_err(|why| self.unreachable(why))?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        self.grpc = Some(grpc.clone());
        Ok(grpc)
    }

    pub(super) fn header(&self) -> peer::Header {
        self.links.shared.header(self.target, &self.member)
    }

    /// Sends a request and waits for its answer.
    async fn call<Request, Answer>(
        &mut self,
        request: &Request,
        option: &RPCOption,
        kind: fn(Bytes) -> Kind,
    ) -> Result<Answer>
    where
        Request: Serialize,
        Answer: DeserializeOwned,
    {
        let body = codec::encode(request).map_err(|why| self.failed(why))?;
        let limit = option.hard_ttl();
        match timeout(limit, self.link.call(kind(body), None)).await {
            Ok(Ok(LinkAnswer::Body(body))) => codec::decode(&body).map_err(|why| self.failed(why)),
            Ok(Ok(_)) => Err(self.failed("the answer has the wrong type")),
            Ok(Err(status)) => Err(RPCError::Unreachable(self.refused(&status))),
            Err(_) => Err(self.failed(format!("no answer within {limit:?}"))),
        }
    }
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = SnapshotImage;

    /// Never called: openraft sends all appends and heartbeats with `stream_append`.
    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>> {
        Err(self.failed("appends are only sent on a stream"))
    }

    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>>>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            // openraft backs off between requests. A call before the first request would be repeated without a pause.
            let Some(first) = input.next().await else {
                let nothing: BoxStream<'s, _> = Box::pin(futures_util::stream::empty());
                return Ok(nothing);
            };
            let appends = Appends::new(&*self, first, input);
            let results = futures_util::stream::unfold(Some(appends), |appends| async move {
                let mut appends = appends?;
                let result = appends.next_result().await?;
                let continues = matches!(result, Ok(Ok(_)));
                Some((result, continues.then_some(appends)))
            });
            let results: BoxStream<'s, _> = Box::pin(results);
            Ok(results)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>> {
        self.call(&request, &option, Kind::Vote).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>> {
        self.links.shared.counters.pre_votes.inc();
        self.call(&request, &option, Kind::PreVote).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, SnapshotImage>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> std::result::Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = transfer::send(self, vote, snapshot) => sent.map_err(StreamingError::Unreachable),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>> {
        self.call(&request, &option, Kind::TransferLeader).await
    }

    fn backoff(&self) -> Option<Backoff> {
        let mut pauses = backoff::Backoff::new();
        Some(Backoff::new(std::iter::repeat_with(move || pauses.next())))
    }
}
