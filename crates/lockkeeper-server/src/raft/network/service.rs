//! Authorization of requests from members, and the gRPC part of their protocol.

use std::sync::Arc;

use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_server::{Peer, PeerServer};
use lockkeeper_net::net;
use openraft::async_runtime::WatchReceiver;
use serde::Serialize;
use tonic::{Request, Response, Status, Streaming};

use super::decode::AppendEntriesRequest;
use super::serve::Admitted;
use super::{MESSAGE_BYTES_MAX, codec, hello, serve, transfer};
use crate::data_dir::{DataDir, Identity};
use crate::formation::cell_secret::{CellSecret, Parties};
use crate::formation::versions::Versions;
use crate::limits::log_throttle::LogThrottle;
use crate::metrics::MemberCounters;
use crate::raft::Raft;
use crate::raft::agreement::{Agreement, TableHash};
use crate::raft::departed::Departed;
use crate::raft::election_trigger::ElectionTrigger;
use crate::raft::eligibility::Eligibility;
use crate::raft::leader_contact::LeaderContact;
use crate::raft::log::{Room, SpaceWatch};
use crate::raft::snapshot::SnapshotStore;
use crate::raft::snapshot::incoming::Incoming;
use crate::raft::timing::Timing;
use crate::raft::types::{Member, SnapshotMeta, TypeConfig, Vote};

pub(super) type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub(super) type TransferLeaderRequest = openraft::raft::TransferLeaderRequest<TypeConfig>;

/// Maximum length of a cell's name.
const CELL_NAME_BYTES_MAX: usize = 64;

/// Called when a request has proved that its sender is a member. The listener passes it with each request, to count the
/// connection as a member's.
#[derive(Clone)]
pub(crate) struct MemberProof(Arc<dyn Fn() + Send + Sync>);

impl MemberProof {
    pub(crate) fn new(note: impl Fn() + Send + Sync + 'static) -> MemberProof {
        MemberProof(Arc::new(note))
    }
}

/// Service for the other members.
#[derive(Clone)]
pub struct PeerService {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) raft: Raft,
    /// Weak, because members' connections outlive the node for a moment and must not keep its log open.
    pub(super) log: SpaceWatch,
    home: Arc<DataDir>,
    /// This node's entry in the membership.
    own: Member,
    /// The members that it was started with.
    configured: Vec<(u64, Member)>,
    incoming: tokio::sync::Mutex<Incoming>,
    pub(super) leader_contact: Arc<LeaderContact>,
    pub(super) election_trigger: Arc<ElectionTrigger>,
    eligibility: Arc<Eligibility>,
    pub(super) counters: MemberCounters,
    timing: Timing,
    pub(super) versions: Versions,
    pub(super) agreement: Arc<Agreement>,
    departed: Arc<Departed>,
    pub(super) implausible_terms: LogThrottle,
    unproven_senders: LogThrottle,
    refused_entries: LogThrottle,
}

/// Arguments of [`PeerService::new`].
pub(crate) struct PeerServiceParts<'a> {
    pub(crate) raft: Raft,
    pub(crate) log: SpaceWatch,
    pub(crate) home: Arc<DataDir>,
    pub(crate) own: Member,
    pub(crate) configured: Vec<(u64, Member)>,
    pub(crate) snapshots: &'a SnapshotStore,
    pub(crate) leader_contact: Arc<LeaderContact>,
    pub(crate) election_trigger: Arc<ElectionTrigger>,
    pub(crate) eligibility: Arc<Eligibility>,
    pub(crate) counters: MemberCounters,
    pub(crate) timing: Timing,
    pub(crate) versions: Versions,
    pub(crate) agreement: Arc<Agreement>,
    pub(crate) departed: Arc<Departed>,
}

impl PeerService {
    pub(crate) fn new(parts: PeerServiceParts<'_>) -> PeerService {
        let PeerServiceParts {
            raft,
            log,
            home,
            own,
            configured,
            snapshots,
            leader_contact,
            election_trigger,
            eligibility,
            ..
        } = parts;
        let PeerServiceParts { counters, timing, versions, agreement, departed, .. } = parts;
        let incoming = tokio::sync::Mutex::new(snapshots.incoming());
        let inner = Inner {
            raft,
            log,
            home,
            own,
            configured,
            incoming,
            leader_contact,
            election_trigger,
            eligibility,
            counters,
            timing,
            versions,
            agreement,
            departed,
            implausible_terms: LogThrottle::new(),
            unproven_senders: LogThrottle::new(),
            refused_entries: LogThrottle::new(),
        };
        PeerService { inner: Arc::new(inner) }
    }

    pub(crate) fn server(&self) -> PeerServer<PeerService> {
        PeerServer::new(self.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl Inner {
    /// Refuses a message that is not addressed to this node, or whose sender is not a member of its cell.
    pub(super) fn admit(&self, header: Option<&peer::Header>) -> Result<(), Status> {
        let header = header.ok_or_else(|| Status::invalid_argument("the message has no header"))?;
        let own = self.home.identity();
        self.check_receiver(&own, header)?;
        let refuse = |why: String| Err(Status::failed_precondition(why));
        if own.cell.is_empty() {
            return refuse(format!("node {} belongs to no cell yet", own.node_id));
        }
        if header.cell != own.cell {
            return refuse(format!(
                "this node belongs to cell {}, but the message is from cell {}: correct the addresses in --cell, or \
                 give the node an empty data folder",
                own.cell, header.cell
            ));
        }
        if !is_proven(&own, header) {
            if let Some(suppressed) = self.unproven_senders.allow() {
                tracing::warn!(
                    suppressed,
                    from = header.from,
                    "refused a message: the sender does not know the cell's secret"
                );
            }
            return refuse(format!(
                "the sender does not know the secret of cell {}: a node becomes a member with lockkeeper member add",
                own.cell
            ));
        }
        self.check_member(header.from)
    }

    pub(super) fn check_format(&self, format: u32) -> Result<(), Status> {
        match self.versions.reads(format) {
            true => Ok(()),
            false => Err(Status::failed_precondition(format!(
                "the message has format {format}, but this node reads formats {} to {}: upgrade in smaller steps, so that \
                 both nodes share a format",
                self.versions.format_min, self.versions.format_max
            ))),
        }
    }

    fn check_receiver(&self, own: &Identity, header: &peer::Header) -> Result<(), Status> {
        let refuse = |why: String| Err(Status::failed_precondition(why));
        self.check_format(header.format)?;
        if header.to != own.node_id {
            return refuse(format!(
                "this is node {}, but the message is for node {}: correct the address of one of them in --cell",
                own.node_id, header.to
            ));
        }
        if header.to_folder != own.folder {
            return refuse(format!(
                "node {} has a different data folder than the cell expects, and may have lost votes and entries that \
                 it acknowledged: remove it from the cell (lockkeeper member remove {0}) and add it again \
                 (lockkeeper member add {0}={1}), or restore its old folder",
                own.node_id, self.own.client
            ));
        }
        Ok(())
    }

    /// Reports whether this node has ever voted or stored an entry. Until then it has acknowledged nothing, and can safely
    /// join another cell.
    fn is_formed(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.last_log_index.is_some() || metrics.vote.leader_id.term > 0
    }

    /// Joins the sender's cell. A node that is not part of a formed cell accepts the first request; a member of its cell may
    /// repeat it.
    fn join(&self, request: &peer::JoinRequest) -> Result<(), Status> {
        let header =
            request.header.as_ref().ok_or_else(|| Status::invalid_argument("the message has no header"))?;
        let own = self.home.identity();
        if self.is_formed() {
            return self.admit(Some(header));
        }
        self.check_receiver(&own, header)?;
        if header.cell.is_empty() || header.cell.len() > CELL_NAME_BYTES_MAX {
            return Err(Status::invalid_argument("the name of the cell is empty or too long"));
        }
        let secret = CellSecret::from_bytes(&request.secret)
            .ok_or_else(|| Status::invalid_argument("the secret of a cell must have 32 bytes"))?;
        tracing::info!(cell = header.cell, by = header.from, "joined a cell");
        self.home
            .join(&header.cell, secret, Default::default())
            .map_err(|error| Status::unavailable(format!("failed to write the identity: {error}")))
    }

    /// Builds the answer to a hello. Members, and all nodes before there is a cell, get all details. Others get only this
    /// node's ID, its client address, and their status in the cell.
    fn hello_response(&self, request: &peer::HelloRequest) -> peer::HelloResponse {
        let own = self.home.identity();
        let details = Member { folder: own.folder, ..self.own.clone() };
        // A cell that is being formed shares its details only with nodes that it can be formed with.
        let can_found = own.cell.is_empty() || self.configured.iter().any(|(id, _)| *id == request.node_id);
        if !self.is_formed() && can_found {
            return peer::HelloResponse {
                format_min: self.versions.format_min,
                format_max: self.versions.format_max,
                cell_version_max: self.versions.cell.0,
                member: Some(hello::to_wire(own.node_id, &details)),
                members: self.configured.iter().map(|(id, member)| hello::to_wire(*id, member)).collect(),
                ..Default::default()
            };
        }
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = || metrics.membership_config.nodes();
        let standing = match members().find(|(id, _)| **id == request.node_id) {
            None => peer::Standing::NotAMember,
            Some((_, known)) if known.folder == request.folder => peer::Standing::Member,
            Some(_) => peer::Standing::OtherFolder,
        };
        let parties = Parties { cell: &own.cell, from: request.node_id, to: 0, to_folder: 0 };
        let is_member = own.secret.as_ref().is_some_and(|secret| secret.verify(parties, &request.proof));
        let (details, members) = match is_member {
            true => (details, members().map(|(id, member)| hello::to_wire(*id, member)).collect()),
            false => (Member { client: details.client, ..Member::default() }, Vec::new()),
        };
        peer::HelloResponse {
            format_min: self.versions.format_min,
            format_max: self.versions.format_max,
            cell_version_max: self.versions.cell.0,
            member: Some(hello::to_wire(own.node_id, &details)),
            cell: own.cell,
            members,
            standing: standing.into(),
        }
    }

    /// Refuses a node that can't be a member.
    pub(super) fn check_member(&self, id: u64) -> Result<(), Status> {
        match self.can_be_member(id) {
            true => Ok(()),
            false => Err(Status::failed_precondition(format!(
                "node {id} is not a member of this cell: add it with lockkeeper member add, or correct --node-id and \
                 --cell of that node"
            ))),
        }
    }

    /// Reports whether a node with this ID can be a member. A node that lags behind may not know all members yet, and needs
    /// their messages to catch up, except for nodes that it has seen leave. But if every majority includes this node (it is
    /// one of at most two voters), there can be no member that it does not know. In particular, a cell of one node has no
    /// other members.
    fn can_be_member(&self, id: u64) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if id == metrics.id {
            return false;
        }
        let membership = &metrics.membership_config;
        if membership.nodes().any(|(known, _)| *known == id) {
            return true;
        }
        let leads = metrics.current_leader == Some(metrics.id);
        let is_leaderless =
            || !leads && self.leader_contact.silent_for() > self.timing.departed_return_after();
        let voters = membership.membership().voter_ids();
        let (count, is_voter) =
            voters.fold((0, false), |(count, is_voter), voter| (count + 1, is_voter || voter == metrics.id));
        (count > 2 || !is_voter) && !self.departed.refuses(id, is_leaderless)
    }

    /// Records a message of a leader.
    pub(super) fn note_leader(&self, leader: u64) {
        self.leader_contact.record();
        self.departed.note_leader(leader);
    }

    /// Decodes and checks a leader's request.
    pub(super) fn parse_append(&self, append: &peer::AppendRequest) -> Result<AppendEntriesRequest, Status> {
        let request = self.decode(&append.body)?;
        if let Some(majority) = TableHash::from_wire(append.majority.as_ref()) {
            self.agreement.announce(majority);
        }
        Ok(request)
    }

    /// Returns the refusal of this many bytes of entries, if there is no space for them in the log. `unanswered` is the size of
    /// accepted entries that are not acknowledged yet.
    pub(super) fn lacks_room(&self, unanswered: usize, bytes: usize) -> Option<Status> {
        const WHY: &str = "this node has no disk space for more entries";
        match self.log.room_for(unanswered, bytes) {
            Room::Yes => None,
            // The leader sends them again.
            Room::Soon => {
                Some(Status::resource_exhausted("this node is creating the next segment of its log"))
            }
            Room::No => {
                if let Some(suppressed) = self.refused_entries.allow() {
                    tracing::error!(suppressed, "refused entries of the leader: {WHY}");
                }
                Some(Status::resource_exhausted(WHY))
            }
        }
    }

    /// Returns the promise to the leader in each accepted message (`raft/promise.rs`), in milliseconds.
    pub(super) fn promise_ms(&self) -> u64 {
        self.timing.promise().as_millis() as u64
    }

    /// Refuses a vote while this node must not take part in an election.
    pub(super) fn check_may_vote(&self, request: &VoteRequest) -> Result<(), Status> {
        // The leader itself has requested this election.
        if request.leadership_transfer || self.eligibility.may_vote() {
            return Ok(());
        }
        Err(Status::unavailable("this node has just started and does not vote yet"))
    }
}

impl PeerService {
    /// Checks that a new connection is a member's. `None` if it must be closed.
    pub(crate) async fn admit_direct(&self, stream: net::Stream) -> Option<Admitted> {
        let admitted = serve::admit(&self.inner, stream).await;
        admitted
            .inspect_err(
                |error| tracing::debug!(%error, "a connection from a member failed before admission"),
            )
            .ok()?
    }

    /// Serves a member until its connection ends.
    pub(crate) async fn serve_direct(&self, admitted: Admitted) {
        if let Err(error) = serve::serve(self.inner.clone(), admitted).await {
            tracing::debug!(%error, "a connection from a member failed");
        }
    }

    /// Refuses a call from a sender that is not a member. Marks the connection of a member as such.
    fn admit_call<T>(&self, request: &Request<T>, header: Option<&peer::Header>) -> Result<(), Status> {
        self.inner.admit(header)?;
        if let Some(proof) = request.extensions().get::<MemberProof>() {
            (proof.0)();
        }
        Ok(())
    }
}

fn is_proven(own: &Identity, header: &peer::Header) -> bool {
    let parties =
        Parties { cell: &header.cell, from: header.from, to: header.to, to_folder: header.to_folder };
    own.secret.as_ref().is_some_and(|secret| secret.verify(parties, &header.proof))
}

fn answer<T: Serialize>(message: &T) -> Result<Response<peer::Answer>, Status> {
    let body = codec::encode(message).map_err(Status::internal)?;
    Ok(Response::new(peer::Answer { body }))
}

fn unavailable(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn hello(
        &self,
        request: Request<peer::HelloRequest>,
    ) -> Result<Response<peer::HelloResponse>, Status> {
        Ok(Response::new(self.inner.hello_response(request.get_ref())))
    }

    async fn join(
        &self,
        request: Request<peer::JoinRequest>,
    ) -> Result<Response<peer::JoinResponse>, Status> {
        self.inner.join(request.get_ref())?;
        Ok(Response::new(peer::JoinResponse {}))
    }

    async fn snapshot_offer(
        &self,
        request: Request<peer::SnapshotOfferRequest>,
    ) -> Result<Response<peer::SnapshotOfferResponse>, Status> {
        self.admit_call(&request, request.get_ref().header.as_ref())?;
        let request = request.into_inner();
        let bytes_there = self.inner.incoming.lock().await.begin(request.id, request.bytes).map_err(disk)?;
        Ok(Response::new(peer::SnapshotOfferResponse { bytes_there }))
    }

    async fn snapshot_send(
        &self,
        request: Request<Streaming<peer::SnapshotPart>>,
    ) -> Result<Response<peer::Answer>, Status> {
        let mut parts = request.into_inner();
        let first = parts
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("the stream has no snapshot parts"))?;
        self.inner.admit(first.header.as_ref())?;
        if first.id != transfer::snapshot_id(&first.meta, first.bytes) {
            return Err(Status::invalid_argument("the snapshot's id does not match its content"));
        }
        let vote: Vote = self.inner.decode(&first.vote)?;
        let meta: SnapshotMeta = self.inner.decode(&first.meta)?;
        let (id, bytes) = (first.id, first.bytes);
        let from = first.header.as_ref().map_or(0, |header| header.from);
        // One transfer at a time: a second one waits here, and then resumes where the first one ended.
        let mut incoming = self.inner.incoming.lock().await;
        incoming.begin(id, bytes).map_err(disk)?;
        let mut next = Some(first);
        while let Some(part) = next {
            if crc32fast::hash(&part.data) != part.crc {
                return Err(Status::data_loss("a part of the snapshot was damaged in transit"));
            }
            incoming.push(part.offset, &part.data).map_err(disk)?;
            next = parts.message().await?;
        }
        let image = incoming.finish().await.map_err(disk)?;
        // The sender may have been removed since it began.
        self.inner.check_member(from)?;
        let snapshot = openraft::Snapshot { meta, snapshot: image };
        let installed = self.inner.raft.install_full_snapshot(vote, snapshot).await.map_err(unavailable)?;
        tracing::info!(bytes, "installed a snapshot from another member");
        answer(&installed)
    }
}

fn disk(error: std::io::Error) -> Status {
    Status::unavailable(format!("failed to store the snapshot: {error}"))
}
