//! Consensus: openraft with our log on disk and our lock table as the state machine.
//! No openraft type is used outside this folder, so that the library can be replaced.

pub(crate) mod acks;
pub(crate) mod agreement;
mod departed;
pub(crate) mod disk_space;
pub(crate) mod election_trigger;
pub(crate) mod eligibility;
pub mod encoded_batch;
mod hand_over;
pub(crate) mod leader_contact;
pub(crate) mod lease;
pub mod log;
mod machine;
mod membership;
pub mod network;
mod peer_maintenance;
mod promise;
pub mod runtime;
pub mod snapshot;
mod status;
pub(crate) mod terms;
mod timing;
pub mod types;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Batch, CellTime};
use lockkeeper_net::utc;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, ForwardReason, RaftError};
use openraft::impls::ProgressResponder;
use openraft::{Config, ReadPolicy, SnapshotPolicy, StepDownPolicy};
use tokio::task::JoinHandle;

use self::acks::Acks;
pub use self::agreement::Disagreement;
use self::agreement::{Agreement, Verdict};
use self::departed::Departed;
use self::disk_space::SpaceReports;
use self::election_trigger::ElectionTrigger;
use self::eligibility::Eligibility;
use self::encoded_batch::EncodedBatch;
use self::hand_over::HandOver;
use self::leader_contact::LeaderContact;
use self::lease::Lease;
use self::log::LogStore;
use self::machine::Machine;
pub(crate) use self::machine::TableHost;
use self::network::{Dialer, Links, Network, PeerContext, PeerService, PeerServiceParts};
use self::snapshot::SnapshotStore;
pub(crate) use self::status::{FollowerProgress, Progress};
pub use self::status::{MemberStatus, RaftStatus};
pub use self::timing::{Timing, TimingPreset};
use self::types::{Member, Proposal, TypeConfig};
use crate::data_dir::{DataDir, Identity};
use crate::failure::Failure;
use crate::formation::versions::Versions;
use crate::metrics::MemberCounters;

pub(crate) type Raft = openraft::Raft<TypeConfig, Machine>;

/// A follower that lags behind by more than this gets a snapshot, if a recent enough one exists.
const ENTRIES_BEHIND_MAX: u64 = 20_000;
/// Maximum number of entries in one message. The log's reader bounds its bytes.
const ENTRIES_PER_MESSAGE_MAX: u64 = 256;

/// Sequence number of a barrier, which has no callers. The proposer's numbers start at 1.
const BARRIER: u64 = 0;

/// Consensus module of a node.
#[derive(Clone)]
pub struct Consensus {
    raft: Raft,
    node_id: u64,
    lease: Arc<Lease>,
    leader_contact: Arc<LeaderContact>,
    agreement: Arc<Agreement>,
    dialer: Dialer,
    timing: Timing,
    links: Arc<Links>,
    /// Shared with the tasks that start elections and send extra heartbeats.
    eligibility: Arc<Eligibility>,
    _tasks: Arc<[AbortOnDrop; 2]>,
    handing_over: HandOver,
    space_reports: Arc<SpaceReports>,
}

/// A task that is aborted when its owner is dropped.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Arguments of [`Consensus::start`].
pub(crate) struct Start {
    pub(crate) home: Arc<DataDir>,
    pub(crate) timing: Timing,
    pub(crate) log: LogStore,
    pub(crate) snapshots: SnapshotStore,
    /// Number of log entries that are kept after a snapshot covers them.
    pub(crate) entries_behind_snapshot: u64,
    pub(crate) snapshot_meta: Option<types::SnapshotMeta>,
    /// Owns the lock table and handles the effects of its entries.
    pub(crate) host: Arc<dyn TableHost>,
    pub(crate) counters: MemberCounters,
    /// This node's entry in the membership.
    pub(crate) own: Member,
    /// The members that this node was started with.
    pub(crate) configured: Vec<(u64, Member)>,
    /// Opens connections to other members.
    pub(crate) dialer: Dialer,
    /// Versions that this node supports.
    pub(crate) versions: Versions,
}

impl Consensus {
    /// Starts raft from the log and the snapshot. Also returns the service for the other members.
    pub(crate) async fn start(start: Start) -> Result<(Consensus, PeerService), Failure> {
        let Start {
            home,
            timing,
            log,
            snapshots,
            entries_behind_snapshot,
            snapshot_meta,
            host,
            counters,
            own,
            configured,
            dialer,
            versions,
        } = start;
        let node_id = home.identity().node_id;
        let config = Config {
            cluster_name: "lockkeeper".to_owned(),
            heartbeat_interval: timing.heartbeat.as_millis() as u64,
            election_timeout_min: timing.election_min.as_millis() as u64,
            election_timeout_max: timing.election_max.as_millis() as u64,
            // Snapshots are triggered by the number of commands, not of entries.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: entries_behind_snapshot,
            replication_lag_threshold: ENTRIES_BEHIND_MAX,
            max_payload_entries: ENTRIES_PER_MESSAGE_MAX,
            enable_leader_restore: Some(false),
            // A node that was partitioned must not depose a leader that the others follow.
            enable_pre_vote: Some(true),
            // A leader transfers its leadership before it is removed.
            removed_leader_step_down: StepDownPolicy::Never,
            ..Config::default()
        };
        let config = config.validate().map_err(|error| Failure::Invalid(error.to_string()))?;
        let agreement = Arc::new(Agreement::new(node_id));
        let departed = Arc::new(Departed::new(home.clone()));
        let machine =
            Machine::new(host, agreement.clone(), departed.clone(), snapshots.clone(), snapshot_meta);
        let acks = Arc::new(Acks::default());
        let space_reports = Arc::new(SpaceReports::default());
        let links = Arc::new(Links::new(network::Shared {
            home: home.clone(),
            dialer: dialer.clone(),
            acks: acks.clone(),
            timing,
            counters: counters.clone(),
            versions,
            agreement: agreement.clone(),
            space_reports: space_reports.clone(),
        }));
        let longest_promise = promise::prepare(&home, timing.promise())
            .map_err(|error| Failure::Unavailable(format!("failed to write the identity: {error}")))?;
        let network = Network::new(links.clone());
        let raft = Raft::new(node_id, Arc::new(config), network, log.clone(), machine)
            .await
            .map_err(|f| stopped(&f))?;
        let lease = Arc::new(Lease::new(raft.metrics(), acks.clone(), timing.promise()));
        let leader_contact = Arc::new(LeaderContact::new(timing.forget_leader_after()));
        // A promise not to vote outlives the process that gave it, and its start is not recorded. So this node neither votes nor stands
        // for election while such a promise could still hold.
        let may_have_promised = home.cell().is_some() && !is_only_voter(&raft, node_id);
        let silent_for = if may_have_promised { longest_promise } else { Duration::ZERO };
        let eligibility = Arc::new(Eligibility::new(silent_for));
        let peer_maintenance =
            peer_maintenance::run(raft.clone(), links.clone(), acks, timing, eligibility.clone());
        let election_trigger = Arc::new(ElectionTrigger::new(
            raft.clone(),
            leader_contact.clone(),
            timing,
            counters.clone(),
            eligibility.clone(),
        ));
        let tasks =
            [tokio::spawn(peer_maintenance), tokio::spawn(election_trigger.clone().watch())].map(AbortOnDrop);
        let consensus = Consensus {
            raft: raft.clone(),
            node_id,
            lease,
            leader_contact: leader_contact.clone(),
            agreement: agreement.clone(),
            dialer,
            timing,
            links,
            eligibility: eligibility.clone(),
            _tasks: Arc::new(tasks),
            handing_over: HandOver::default(),
            space_reports,
        };
        consensus.suppress_elections(home.clone());
        let service = PeerService::new(PeerServiceParts {
            raft,
            log: log.space_watch(),
            home,
            own,
            configured,
            snapshots: &snapshots,
            leader_contact,
            election_trigger,
            eligibility,
            counters,
            timing,
            versions,
            agreement,
            departed,
        });
        Ok((consensus, service))
    }

    /// Suppresses elections while a promise of an earlier process may hold. Afterwards only the current promise counts.
    fn suppress_elections(&self, home: Arc<DataDir>) {
        let (raft, eligibility) = (self.raft.clone(), self.eligibility.clone());
        let promise = self.timing.promise();
        raft.runtime_config().elect(eligibility.may_stand());
        tokio::spawn(async move {
            tokio::time::sleep_until(eligibility.votes_from()).await;
            raft.runtime_config().elect(eligibility.may_stand());
            if let Err(error) = promise::settle(&home, promise) {
                tracing::warn!(%error, "failed to write the identity: the next start suppresses elections for longer than necessary");
            }
        });
    }

    /// Returns the timing of heartbeats and elections.
    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns the parameters of requests to other nodes.
    pub(crate) fn peer_context(&self, own: Identity) -> PeerContext<'_> {
        let versions = self.links.versions();
        PeerContext { dialer: &self.dialer, timing: &self.timing, versions, own }
    }

    /// Reports whether this node is the only voter.
    pub(crate) fn is_alone(&self) -> bool {
        is_only_voter(&self.raft, self.node_id)
    }

    /// Reports whether this node has ever been part of a cell.
    pub(crate) async fn is_formed(&self) -> Result<bool, Failure> {
        self.raft.is_initialized().await.map_err(|f| stopped(&f))
    }

    /// Forms the cell with these members, if this node has never been part of one.
    pub(crate) async fn form(&self, members: BTreeMap<u64, Member>) -> Result<(), Failure> {
        if self.is_formed().await? {
            return Ok(());
        }
        self.raft.initialize(members).await.map_err(|error| Failure::Unavailable(error.to_string()))
    }

    /// Starts an election at once, without an election timeout. For cells of one node.
    pub(crate) async fn campaign(&self) -> Result<(), Failure> {
        self.raft.trigger().elect(false).await.map_err(|f| stopped(&f))
    }

    /// Proposes an entry. The returned future completes when the entry is applied or has failed.
    pub(crate) async fn propose(
        &self,
        proposal: Proposal,
    ) -> Result<impl Future<Output = Result<(), Failure>> + use<>, Failure> {
        let (responder, done) = ProgressResponder::complete_only();
        self.raft.client_write_ff(proposal, Some(responder)).await.map_err(|f| stopped(&f))?;
        Ok(async move {
            match done.await {
                Ok(Ok(_)) => Ok(()),
                // The entry was not appended.
                Ok(Err(ClientWriteError::ForwardToLeader(to))) => Err(match to.reason {
                    ForwardReason::LeaseExpired => Failure::no_majority(),
                    _ => Failure::NotLeader { leader: to.leader_node.map(|member| member.client) },
                }),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the outcome of an entry is unknown");
                    Err(Failure::unknown("the leader has changed"))
                }
                Err(_) => Err(Failure::unknown("the node lost its leadership meanwhile")),
            }
        })
    }

    /// Commits an entry without commands and waits until it is applied here. Everything that was in the log when it was
    /// proposed, committed or not, is applied before it.
    pub(crate) async fn commit_barrier(&self, proposer: u64, now: CellTime) -> Result<(), Failure> {
        let batch = Arc::new(EncodedBatch::new(Batch { now, utc_ms: utc::now_ms(), commands: Vec::new() }));
        self.propose(Proposal { proposer, sequence: BARRIER, batch }).await?.await
    }

    /// Waits until everything that was acknowledged before is applied here and a majority has confirmed this leader.
    pub(crate) async fn confirm_leadership(&self) -> Result<(), Failure> {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(stopped(&fatal)),
            Err(error) => Err(Failure::Unavailable(error.to_string())),
        }
    }

    /// Pauses or resumes this node's heartbeats as a leader. A node that may not lead sends none in any case.
    pub(crate) fn pause_heartbeats(&self, pauses: bool) {
        self.eligibility.pause_heartbeats(pauses);
        self.raft.runtime_config().heartbeat(self.eligibility.may_send_heartbeats());
    }

    /// Returns the leader's lease.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Checks whether this node may serve as the leader, by the members' reported tables (S13). A node in the minority
    /// stops serving permanently.
    pub(crate) fn check_agreement(&self) -> Result<(), Disagreement> {
        match self.agreement.verdict() {
            Verdict::Serve => Ok(()),
            Verdict::Undecided(found) => Err(found),
            Verdict::Minority(found) => {
                self.agreement.stop(found);
                Err(found)
            }
        }
    }

    /// Checks whether this node may save its table, as [`Agreement::may_save_table`].
    pub(crate) fn may_save_table(&self) -> Result<(), Disagreement> {
        match self.agreement.verdict() {
            Verdict::Minority(found) | Verdict::Undecided(found) if !self.agreement.may_save_table() => {
                Err(found)
            }
            _ => Ok(()),
        }
    }

    /// Allows or forbids this node to lead. If forbidden, it starts no elections, and sends no heartbeats if it leads.
    /// While a promise of an earlier process may hold, it starts none in any case.
    pub(crate) fn set_eligible(&self, is_eligible: bool) {
        self.eligibility.set_stopped(!is_eligible);
        self.raft.runtime_config().elect(self.eligibility.may_stand());
        self.raft.runtime_config().heartbeat(self.eligibility.may_send_heartbeats());
    }

    /// Waits until a difference between the tables of two members is found, or the last one ends. For one task only.
    pub(crate) async fn agreement_changed(&self) {
        self.agreement.changed().await;
    }

    /// Whether a verdict on the tables since the last call was a doubt, even if it is settled by now.
    pub(crate) fn take_doubt(&self) -> bool {
        self.agreement.take_doubt()
    }

    /// Discards the members' reports after this node was elected: they may be outdated.
    pub(crate) fn forget_reports(&self) {
        self.agreement.forget_reports();
    }

    /// Returns the disagreement with the majority that has stopped this node, if there is one.
    pub fn stopped_by_disagreement(&self) -> Option<Disagreement> {
        self.agreement.stopped()
    }

    /// Returns how a member's table differs, if it does. Only on a leader.
    pub fn disagreement_of(&self, member: u64) -> Option<Disagreement> {
        self.agreement.difference(member)
    }

    /// Triggers a snapshot, so that the log can be purged.
    pub(crate) async fn take_snapshot(&self) -> Result<(), Failure> {
        self.raft.trigger().snapshot().await.map_err(|f| stopped(&f))
    }

    /// Returns raft's view of the cell.
    pub fn status(&self) -> RaftStatus {
        let metrics = self.raft.metrics();
        let mut status = status::of(&metrics.borrow_watched(), &self.links.round_trips());
        if !status.leads && !self.leader_contact.is_recent() {
            (status.leader, status.leader_address) = (None, None);
        }
        status
    }

    /// Returns the progress of the followers, if this node leads.
    pub(crate) fn progress(&self) -> Progress {
        let metrics = self.raft.metrics();
        status::progress(&metrics.borrow_watched(), 2 * self.timing.election_max)
    }

    /// Waits until the leader, the term or the health of raft changes.
    pub(crate) async fn changed(&self, seen: &RaftStatus) -> RaftStatus {
        // These metrics change only with the leader, not with every entry.
        let mut metrics = self.raft.server_metrics();
        loop {
            let now = self.status();
            if (now.leader, now.leads, now.term, &now.stopped)
                != (seen.leader, seen.leads, seen.term, &seen.stopped)
            {
                return now;
            }
            if metrics.changed().await.is_err() {
                let now = self.status();
                let stopped = now.stopped.clone().or_else(|| Some("raft has ended".to_owned()));
                return RaftStatus { stopped, leads: false, ..now };
            }
        }
    }

    /// Tells the other members that this leader stops, if it leads. It must have stopped serving permanently: they do not wait for its
    /// lease to end.
    pub(crate) async fn send_goodbye(&self) {
        if self.status().leads && !self.is_alone() {
            let vote = self.raft.metrics().borrow_watched().vote;
            self.links.goodbye(&vote).await;
        }
    }

    /// Stops raft.
    pub(crate) async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop cleanly");
        }
        self.links.close();
    }
}

fn is_only_voter(raft: &Raft, node_id: u64) -> bool {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let mut voters = metrics.membership_config.membership().voter_ids();
    voters.next() == Some(node_id) && voters.next().is_none()
}

fn stopped(fatal: &Fatal<TypeConfig>) -> Failure {
    Failure::Unavailable(format!("the node has stopped: {fatal}"))
}
