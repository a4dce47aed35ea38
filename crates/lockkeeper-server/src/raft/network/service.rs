//! The members' questions to this node.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use futures_util::StreamExt;
use lockkeeper_proto::peer::peer_server::{Peer, PeerServer};
use lockkeeper_proto::{net, peer};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::StreamAppendResult;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::{Request, Response, Status, Streaming};

use super::direct::Direct;
use super::{FORMAT, MESSAGE_BYTES_MAX, codec, hello, transfer};
use crate::data_dir::DataDir;
use crate::listen::{FIRST_BYTES_WITHIN, Seldom};
use crate::raft::agreement::{Agreement, TableHash};
use crate::raft::heard::Heard;
use crate::raft::snapshot::SnapshotStore;
use crate::raft::snapshot::incoming::Incoming;
use crate::raft::terms;
use crate::raft::types::{Member, SnapshotMeta, TypeConfig, Vote};
use crate::raft::{Consensus, Raft};

type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
type TransferLeaderRequest = openraft::raft::TransferLeaderRequest<TypeConfig>;

/// After the leader's stream has broken: how often and how many times this node tries to stand.
const STAND_AGAIN: Duration = Duration::from_millis(25);
const STAND_TRIES: usize = 40;

/// Answers the other members.
#[derive(Clone)]
pub struct PeerService {
    inner: Arc<Inner>,
}

struct Inner {
    raft: Raft,
    home: Arc<DataDir>,
    /// How the others should know this node.
    own: Member,
    /// The members it was started with.
    given: Vec<(u64, Member)>,
    incoming: tokio::sync::Mutex<Incoming>,
    heard: Arc<Heard>,
    agreement: Arc<Agreement>,
    /// Until then this node does not vote: before it was restarted it may have promised a leader not to.
    votes_from: Instant,
    seldom: Seldom,
}

impl PeerService {
    pub(crate) fn new(
        consensus: &Consensus,
        home: Arc<DataDir>,
        own: Member,
        given: Vec<(u64, Member)>,
        snapshots: &SnapshotStore,
        silent_for: Duration,
    ) -> PeerService {
        let Consensus { raft, heard, agreement, .. } = consensus.clone();
        let incoming = tokio::sync::Mutex::new(snapshots.incoming());
        let votes_from = Instant::now() + silent_for;
        let seldom = Seldom::default();
        PeerService {
            inner: Arc::new(Inner { raft, home, own, given, incoming, heard, agreement, votes_from, seldom }),
        }
    }

    pub(crate) fn server(&self) -> PeerServer<PeerService> {
        PeerServer::new(self.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl Inner {
    /// Whether a message is meant for this node.
    fn admit(&self, header: Option<&peer::Header>) -> Result<(), Status> {
        let header = header.ok_or_else(|| Status::invalid_argument("the message has no header"))?;
        let own = self.home.identity();
        let refuse = |why: String| Err(Status::failed_precondition(why));
        if header.format != FORMAT {
            return refuse(format!(
                "this node speaks format {FORMAT}, the message has format {}: run the same version on all nodes",
                header.format
            ));
        }
        if header.to != own.node_id {
            return refuse(format!(
                "this is node {}, the message is for node {}: correct the address of one of them in --cell",
                own.node_id, header.to
            ));
        }
        if header.to_folder != own.folder {
            return refuse(format!(
                "node {} has another data folder than the cell knows it by, and could have forgotten what it \
                 promised: remove it from the cell (lockkeeper member remove {0}) and add it again \
                 (lockkeeper member add {0}={1}), or bring its old folder back",
                own.node_id, self.own.client
            ));
        }
        if own.cell.is_empty() {
            tracing::info!(cell = header.cell, by = header.from, "this node now belongs to a cell");
            return self
                .home
                .join(&header.cell, Default::default())
                .map_err(|error| Status::unavailable(format!("the identity cannot be written: {error}")));
        }
        if header.cell == own.cell && !self.can_be_member(header.from) {
            return refuse(format!(
                "node {} is not a member of this cell: add it with lockkeeper member add, or correct --node-id and \
                 --cell of that node",
                header.from
            ));
        }
        if header.cell != own.cell {
            return refuse(format!(
                "this node belongs to cell {}, the message is from cell {}: correct the addresses in --cell, or \
                 give the node an empty folder",
                own.cell, header.cell
            ));
        }
        Ok(())
    }

    /// Whether a node with this id can be a member. Somebody who lags behind may not know all members yet, and needs to
    /// hear them to catch up. But where every majority includes this node (it is one of at most two voters), there can
    /// be no member that it does not know; above all, a cell of one has no others.
    fn can_be_member(&self, id: u64) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if id == metrics.id {
            return false;
        }
        let membership = &metrics.membership_config;
        let voters: Vec<u64> = membership.membership().voter_ids().collect();
        membership.nodes().any(|(known, _)| *known == id) || voters.len() > 2 || !voters.contains(&metrics.id)
    }

    /// Refuses a term that no election can have reached, before raft persists it.
    fn believe(&self, term: u64) -> Result<(), Status> {
        let highest = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let has_members = metrics.membership_config.nodes().next().is_some();
            terms::highest_believed(metrics.current_term, has_members)
        };
        if term <= highest {
            return Ok(());
        }
        if self.seldom.now() {
            tracing::warn!(term, highest, "refused a message of a term that no election can have reached");
        }
        Err(Status::failed_precondition(format!(
            "the message is of term {term}, this node believes terms up to {highest}: if the sender is a member, remove \
             this node from the cell and add it again with an empty folder; otherwise protect the members' port with \
             --peer-ca"
        )))
    }

    /// The same for all terms in a leader's request.
    fn believe_append(&self, request: &AppendEntriesRequest) -> Result<(), Status> {
        let entries = request.entries.iter().map(|entry| &entry.log_id);
        let ids = entries.chain(&request.prev_log_id).chain(&request.leader_commit);
        let highest = ids.map(|id| id.leader_id.term).fold(request.vote.leader_id.term, u64::max);
        self.believe(highest)
    }

    fn open<T: DeserializeOwned>(&self, request: Request<peer::Call>) -> Result<T, Status> {
        let call = request.into_inner();
        self.admit(call.header.as_ref())?;
        codec::decode(&call.body).map_err(Status::invalid_argument)
    }

    /// A request on a leader's stream, whose first one says who it is.
    fn take_in(
        &self,
        request: &peer::AppendRequest,
        from: Option<u64>,
    ) -> Result<(AppendEntriesRequest, u64), Status> {
        let from = match (&request.header, from) {
            (None, Some(from)) => from,
            (header, _) => {
                self.admit(header.as_ref())?;
                header.as_ref().map_or(0, |header| header.from)
            }
        };
        let majority = TableHash::from_wire(request.majority.as_ref());
        let request = codec::decode_append(&request.body).map_err(Status::invalid_argument)?;
        self.believe_append(&request)?;
        if let Some(majority) = majority {
            self.agreement.announce(majority);
        }
        Ok((request, from))
    }

    fn may_vote(&self, request: &VoteRequest) -> Result<(), Status> {
        let last = request.last_log_id.as_ref().map_or(0, |id| id.leader_id.term);
        self.believe(request.vote.leader_id.term.max(last))?;
        // The leader itself has asked for that election.
        if request.leadership_transfer || Instant::now() >= self.votes_from {
            return Ok(());
        }
        Err(Status::unavailable("this node has just been started and does not vote yet"))
    }

    /// The stream of the leader has broken. If it is gone, this node stands as soon as the promise to it is over,
    /// instead of waiting for some more silence; if it is not, it will have been heard again by then.
    async fn replace(self: Arc<Self>, leader: u64) {
        for _ in 0..STAND_TRIES {
            let still = {
                let metrics = self.raft.metrics();
                metrics.borrow_watched().current_leader == Some(leader)
            };
            // Refused by raft itself as long as the promise holds, here and at the other members.
            if !still || Instant::now() < self.votes_from || self.raft.trigger().elect(true).await.is_err() {
                return;
            }
            let pause = STAND_AGAIN.as_micros() as u64;
            let more = lockkeeper_proto::chance::number().unwrap_or_default() % pause;
            tokio::time::sleep(Duration::from_micros(pause / 2 + more)).await;
        }
    }
}

impl PeerService {
    /// Takes in the entries of a leader, for as long as its stream lasts.
    pub(crate) async fn serve_direct(&self, stream: net::Stream) {
        if let Err(error) = self.append(stream).await {
            tracing::debug!(%error, "the stream of a leader has ended");
        }
    }

    async fn append(&self, stream: net::Stream) -> io::Result<()> {
        let (incoming, mut outgoing) = Direct::accept(stream).await?;
        // Why the requests ended before the leader ended them.
        let broken = Arc::new(Mutex::new(None));
        let requests = {
            let (inner, broken) = (self.inner.clone(), broken.clone());
            futures_util::stream::unfold((incoming, None), move |(mut incoming, from)| {
                let (inner, broken) = (inner.clone(), broken.clone());
                async move {
                    let next = incoming.next::<peer::AppendRequest>();
                    let next = match from {
                        Some(_) => next.await,
                        // Until then it is anybody.
                        None => timeout(FIRST_BYTES_WITHIN, next).await.unwrap_or(Ok(None)),
                    };
                    let Ok(Some(request)) = next else {
                        // The connection is gone: there is nobody to tell.
                        if let Some(from) = from {
                            tokio::spawn(inner.replace(from));
                        }
                        return None;
                    };
                    match inner.take_in(&request, from) {
                        Ok((request, from)) => {
                            inner.heard.now();
                            Some((request, (incoming, Some(from))))
                        }
                        Err(status) => {
                            *broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                            None
                        }
                    }
                }
            })
        };
        let answers = self.inner.raft.stream_append(requests);
        let agreement = self.inner.agreement.clone();
        let answers = answers.map(|result| peer::AppendAnswer {
            table: agreement.latest().map(TableHash::to_wire),
            ..in_words(result.map_err(stopped))
        });
        outgoing.write_all(answers).await?;
        let broken = broken.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(status) = broken {
            outgoing.push(&refusal(&status));
            outgoing.write().await?;
        }
        Ok(())
    }
}

/// What a leader is told about its request.
fn in_words(result: Result<StreamAppendResult<TypeConfig>, Status>) -> peer::AppendAnswer {
    match result.and_then(|result| codec::encode(&result).map_err(Status::internal)) {
        Ok(body) => peer::AppendAnswer { body, ..Default::default() },
        Err(status) => refusal(&status),
    }
}

fn refusal(status: &Status) -> peer::AppendAnswer {
    let refused = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    peer::AppendAnswer { refused: refused.to_owned(), code: status.code() as i32, ..Default::default() }
}

fn answer<T: Serialize>(message: &T) -> Result<Response<peer::Answer>, Status> {
    Ok(Response::new(peer::Answer { body: codec::encode(message).map_err(Status::internal)? }))
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn hello(
        &self,
        _request: Request<peer::HelloRequest>,
    ) -> Result<Response<peer::HelloResponse>, Status> {
        let own = self.inner.home.identity();
        let members = match own.cell.is_empty() {
            true => self.inner.given.iter().map(|(id, member)| hello::to_wire(*id, member)).collect(),
            false => {
                let metrics = self.inner.raft.metrics();
                let metrics = metrics.borrow_watched();
                metrics.membership_config.nodes().map(|(id, member)| hello::to_wire(*id, member)).collect()
            }
        };
        Ok(Response::new(peer::HelloResponse {
            format: FORMAT,
            member: Some(hello::to_wire(
                own.node_id,
                &Member { folder: own.folder, ..self.inner.own.clone() },
            )),
            cell: own.cell,
            members,
        }))
    }

    async fn heartbeat(&self, request: Request<peer::Call>) -> Result<Response<peer::Answer>, Status> {
        let request: AppendEntriesRequest = self.inner.open(request)?;
        self.inner.believe_append(&request)?;
        self.inner.heard.now();
        answer(&self.inner.raft.append_entries(request).await.map_err(stopped)?)
    }

    async fn vote(&self, request: Request<peer::Call>) -> Result<Response<peer::Answer>, Status> {
        let request: VoteRequest = self.inner.open(request)?;
        self.inner.may_vote(&request)?;
        answer(&self.inner.raft.vote(request).await.map_err(stopped)?)
    }

    async fn pre_vote(&self, request: Request<peer::Call>) -> Result<Response<peer::Answer>, Status> {
        let request: VoteRequest = self.inner.open(request)?;
        self.inner.may_vote(&request)?;
        answer(&self.inner.raft.pre_vote(request).await.map_err(stopped)?)
    }

    async fn transfer_leader(&self, request: Request<peer::Call>) -> Result<Response<peer::Answer>, Status> {
        let request: TransferLeaderRequest = self.inner.open(request)?;
        self.inner.believe(request.from_leader().leader_id.term)?;
        answer(&self.inner.raft.handle_transfer_leader(request).await.map_err(stopped)?)
    }

    async fn snapshot_offer(
        &self,
        request: Request<peer::SnapshotOfferRequest>,
    ) -> Result<Response<peer::SnapshotOfferResponse>, Status> {
        let request = request.into_inner();
        self.inner.admit(request.header.as_ref())?;
        let bytes_there = self.inner.incoming.lock().await.begin(request.id, request.bytes).map_err(disk)?;
        Ok(Response::new(peer::SnapshotOfferResponse { bytes_there }))
    }

    async fn snapshot_send(
        &self,
        request: Request<Streaming<peer::SnapshotPart>>,
    ) -> Result<Response<peer::Answer>, Status> {
        let mut parts = request.into_inner();
        let first =
            parts.message().await?.ok_or_else(|| Status::invalid_argument("no part of a snapshot"))?;
        self.inner.admit(first.header.as_ref())?;
        if first.id != transfer::snapshot_id(&first.meta, first.bytes) {
            return Err(Status::invalid_argument("the snapshot's name does not fit what it is"));
        }
        let vote: Vote = codec::decode(&first.vote).map_err(Status::invalid_argument)?;
        let meta: SnapshotMeta = codec::decode(&first.meta).map_err(Status::invalid_argument)?;
        let last = meta.last_log_id.as_ref().map_or(0, |id| id.leader_id.term);
        self.inner.believe(vote.leader_id.term.max(last))?;
        let (id, bytes) = (first.id, first.bytes);
        // One transfer at a time: a second one waits here, and then goes on where the first one ended.
        let mut incoming = self.inner.incoming.lock().await;
        incoming.begin(id, bytes).map_err(disk)?;
        let mut next = Some(first);
        while let Some(part) = next {
            if crc32fast::hash(&part.data) != part.crc {
                return Err(Status::data_loss("a part of the snapshot was damaged on the way"));
            }
            incoming.push(part.offset, &part.data).map_err(disk)?;
            next = parts.message().await?;
        }
        let image = incoming.finish().await.map_err(disk)?;
        let snapshot = openraft::Snapshot { meta, snapshot: image };
        let installed = self.inner.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        tracing::info!(bytes, "a snapshot of another member was installed");
        answer(&installed)
    }
}

fn disk(error: std::io::Error) -> Status {
    Status::unavailable(format!("the snapshot cannot be stored: {error}"))
}
