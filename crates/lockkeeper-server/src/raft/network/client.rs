//! The way to one member, as openraft uses it: each replication and heartbeat has its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use lockkeeper_proto::peer;
use lockkeeper_proto::peer::peer_client::PeerClient as Grpc;
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

use super::dial::STALLED_AFTER;
use super::direct::{Direct, Exchange};
use super::ways::Ways;
use super::withhold::Withhold;
use super::{FORMAT, Network, codec, transfer};
use crate::data_dir::DataDir;
use crate::raft::acks::{Acks, Sent};
use crate::raft::room::Rooms;
use crate::raft::snapshot::SnapshotImage;
use crate::raft::types::{Member, TypeConfig, Vote};

type Result<T> = std::result::Result<T, RPCError<TypeConfig>>;

/// Between two tries to reach a member: short at first, because a node that was restarted is soon back.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LONGEST: Duration = Duration::from_millis(500);
/// The way to one member.
#[derive(Debug)]
pub(crate) struct PeerClient {
    home: Arc<DataDir>,
    /// What all clients of this node share, for elections.
    ways: Arc<Ways>,
    acks: Arc<Acks>,
    rooms: Arc<Rooms>,
    target: u64,
    member: Member,
    grpc: Option<Grpc<Channel>>,
}

impl PeerClient {
    pub(super) fn new(network: &Network, target: u64, member: Member) -> PeerClient {
        let Network { home, ways, acks, rooms } = network.clone();
        PeerClient { home, ways, acks, rooms, target, member, grpc: None }
    }

    pub(super) fn unreachable(&self, why: impl std::fmt::Display) -> Unreachable<TypeConfig> {
        let text = format!("node {} at {}: {why}", self.target, self.member.peer);
        Unreachable::new(&std::io::Error::other(text))
    }

    fn failed(&self, why: impl std::fmt::Display) -> RPCError<TypeConfig> {
        RPCError::Unreachable(self.unreachable(why))
    }

    /// The member did not do what was asked.
    pub(super) fn refused(&self, status: &Status) -> Unreachable<TypeConfig> {
        if status.code() == Code::FailedPrecondition {
            // Not a matter of time: somebody has to do something.
            tracing::error!(node = self.target, address = %self.member.peer, why = status.message(),
                "a member refuses to speak with this node");
        }
        self.unreachable(status.message())
    }

    pub(super) fn grpc(&mut self) -> std::result::Result<Grpc<Channel>, Unreachable<TypeConfig>> {
        if let Some(grpc) = &self.grpc {
            return Ok(grpc.clone());
        }
        let grpc = self.ways.connect(&self.member.peer).map_err(|why| self.unreachable(why))?;
        self.grpc = Some(grpc.clone());
        Ok(grpc)
    }

    pub(super) fn header(&self) -> peer::Header {
        let own = self.home.identity();
        peer::Header {
            format: FORMAT,
            cell: own.cell,
            from: own.node_id,
            to: self.target,
            to_folder: self.member.folder,
        }
    }

    /// One question and its answer.
    async fn call<Request, Answer>(
        &mut self,
        request: &Request,
        option: &RPCOption,
        kind: Kind,
    ) -> Result<Answer>
    where
        Request: Serialize,
        Answer: DeserializeOwned,
    {
        let mut grpc = match kind {
            Kind::Heartbeat => self.grpc().map_err(RPCError::Unreachable)?,
            Kind::Vote | Kind::PreVote | Kind::TransferLeader => {
                self.ways.ask(&self.member.peer).map_err(|why| self.failed(why))?
            }
        };
        let body = codec::encode(request).map_err(|why| self.failed(why))?;
        let call = peer::Call { header: Some(self.header()), body };
        let ask = async {
            match kind {
                Kind::Heartbeat => grpc.heartbeat(call).await,
                Kind::Vote => grpc.vote(call).await,
                Kind::PreVote => grpc.pre_vote(call).await,
                Kind::TransferLeader => grpc.transfer_leader(call).await,
            }
        };
        let limit = option.hard_ttl();
        let answer = match timeout(limit, ask).await {
            Ok(answer) => answer.map_err(|status| RPCError::Unreachable(self.refused(&status)))?,
            Err(_) => return Err(self.failed(format!("no answer within {limit:?}"))),
        };
        if !matches!(kind, Kind::Heartbeat) {
            self.ways.answered(&self.member.peer);
        }
        let answer = answer.into_inner();
        if matches!(kind, Kind::Heartbeat) {
            self.rooms.report(self.target, answer.room_bytes);
        }
        codec::decode(&answer.body).map_err(|why| self.failed(why))
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Heartbeat,
    Vote,
    PreVote,
    TransferLeader,
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = SnapshotImage;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>> {
        self.call(&request, &option, Kind::Heartbeat).await
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
            // The pause after a failure is taken by the requests: a call before the first of them would be made
            // again and again without one.
            let Some(first) = input.next().await else {
                let nothing: BoxStream<'s, _> = Box::pin(futures_util::stream::empty());
                return Ok(nothing);
            };
            let input = futures_util::stream::iter([first]).chain(input);
            let opened = Direct::open(self.ways.dialer(), &self.member.peer).await;
            let direct = opened.map_err(|error| self.failed(error))?;
            let sent = Sent::new(self.acks.clone(), self.target);
            let mut header = Some(self.header());
            let waiting = sent.clone();
            let is_stuck = Arc::new(AtomicBool::new(false));
            let stuck = is_stuck.clone();
            let mut last_empty = None;
            let input = input.take_while(move |request| {
                let empty =
                    request.entries.is_empty().then_some((request.prev_log_id, request.leader_commit));
                // Nothing new, twice: the entries that it wants to send have been purged. openraft can come back to such
                // a plan although it has made a better one since, and would stay with it for as long as the
                // stream lasts.
                let goes_on = empty.is_none() || empty != last_empty;
                last_empty = empty;
                if !goes_on {
                    stuck.store(true, Ordering::Relaxed);
                }
                std::future::ready(goes_on)
            });
            let requests = Withhold::new(input).filter_map(move |request| {
                let vote = request.vote;
                // An entry that was once read from the log can always be encoded; if not, the stream stalls,
                // is given up and the reason is in the log.
                let request = match codec::encode_append(&request) {
                    Ok(body) => {
                        sent.request(vote);
                        Some(peer::AppendRequest { header: header.take(), body })
                    }
                    Err(error) => {
                        tracing::error!(%error, "entries cannot be replicated");
                        None
                    }
                };
                std::future::ready(request)
            });
            let state = Some((Exchange::new(direct, requests), waiting, is_stuck, &*self));
            let results = futures_util::stream::unfold(state, |state| async move {
                let (mut exchange, waiting, is_stuck, way) = state?;
                loop {
                    let result = match timeout(STALLED_AFTER, exchange.next_answer()).await {
                        Ok(Ok(Some(answer))) => {
                            way.rooms.report(way.target, answer.room_bytes);
                            let result = codec::decode::<StreamAppendResult<TypeConfig>>(&answer.body);
                            waiting.answered(matches!(result, Ok(Ok(_))));
                            result.map_err(|why| way.failed(why))
                        }
                        Ok(Ok(None)) if is_stuck.load(Ordering::Relaxed) => {
                            Err(way.failed("what it needs is no longer in the log"))
                        }
                        Ok(Ok(None)) => return None,
                        Ok(Err(status)) => Err(RPCError::Unreachable(way.refused(&status))),
                        Err(_) if waiting.is_idle() => continue,
                        Err(_) => Err(way.failed(format!("nothing acknowledged for {STALLED_AFTER:?}"))),
                    };
                    let goes_on = matches!(result, Ok(Ok(_)));
                    return Some((result, goes_on.then_some((exchange, waiting, is_stuck, way))));
                }
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
        let pauses = std::iter::successors(Some(RETRY_FIRST), |pause| Some((*pause * 2).min(RETRY_LONGEST)));
        Some(Backoff::new(pauses))
    }
}
