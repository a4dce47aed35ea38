//! Consensus: openraft with our log on disk and our lock table as the state machine.
//! Nothing outside this folder names an openraft type, so that the choice can change.

pub(crate) mod acks;
pub(crate) mod agreement;
pub(crate) mod disk_space;
pub(crate) mod election_trigger;
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
use std::sync::atomic::{AtomicBool, Ordering};
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
use self::disk_space::SpaceReports;
use self::election_trigger::ElectionTrigger;
use self::encoded_batch::EncodedBatch;
use self::hand_over::HandOver;
use self::leader_contact::LeaderContact;
use self::lease::Lease;
use self::log::LogStore;
use self::machine::Machine;
pub(crate) use self::machine::TableHost;
use self::network::{Contact, Dialer, Links, Network, PeerService, PeerServiceParts};
use self::snapshot::SnapshotStore;
pub(crate) use self::status::{FollowerProgress, Progress};
pub use self::status::{MemberStatus, RaftStatus};
pub use self::timing::{Timing, TimingPreset};
use self::types::{Member, Proposal, TypeConfig};
use crate::data_dir::{DataDir, Identity};
use crate::failure::Failure;
use crate::metrics::MemberCounters;
use crate::versions::Versions;

pub(crate) type Raft = openraft::Raft<TypeConfig, Machine>;

/// A follower that is further behind than this gets a snapshot, if there is one that helps.
const ENTRIES_BEHIND_MAX: u64 = 20_000;
/// Most entries in one message; the log's reader bounds its bytes.
const ENTRIES_PER_MESSAGE_MAX: u64 = 256;

/// The sequence number of a barrier, which has no callers: those of the proposer begin at 1.
const BARRIER: u64 = 0;

/// A node's consensus module.
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
    election_trigger: Arc<ElectionTrigger>,
    _tasks: Arc<[AbortOnDrop; 2]>,
    /// Shared with the task that sends extra heartbeats.
    sends_heartbeats: Arc<AtomicBool>,
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

/// What consensus starts with.
pub(crate) struct Start {
    pub(crate) home: Arc<DataDir>,
    pub(crate) timing: Timing,
    pub(crate) log: LogStore,
    pub(crate) snapshots: SnapshotStore,
    /// Log entries that are kept behind a snapshot.
    pub(crate) entries_behind_snapshot: u64,
    pub(crate) snapshot_meta: Option<types::SnapshotMeta>,
    /// The lock table, and who acts on what follows from its entries.
    pub(crate) host: Arc<dyn TableHost>,
    pub(crate) counters: MemberCounters,
    /// How the others should know this node.
    pub(crate) own: Member,
    /// The members it was started with.
    pub(crate) given: Vec<(u64, Member)>,
    /// How other members are reached.
    pub(crate) dialer: Dialer,
    /// Which versions this node supports.
    pub(crate) versions: Versions,
}

impl Consensus {
    /// Starts raft on what the log and the snapshot hold. Returns the service for the other members with it.
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
            given,
            dialer,
            versions,
        } = start;
        let node_id = home.identity().node_id;
        let config = Config {
            cluster_name: "lockkeeper".to_owned(),
            heartbeat_interval: timing.heartbeat.as_millis() as u64,
            election_timeout_min: timing.election_min.as_millis() as u64,
            election_timeout_max: timing.election_max.as_millis() as u64,
            // Snapshots are asked for by the number of commands, not of entries.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: entries_behind_snapshot,
            replication_lag_threshold: ENTRIES_BEHIND_MAX,
            max_payload_entries: ENTRIES_PER_MESSAGE_MAX,
            enable_leader_restore: Some(false),
            // A node that was cut off must not depose a leader whom the others follow.
            enable_pre_vote: Some(true),
            // The office is handed over before a leader is removed.
            removed_leader_step_down: StepDownPolicy::Never,
            ..Config::default()
        };
        let config = config.validate().map_err(|error| Failure::Invalid(error.to_string()))?;
        let agreement = Arc::new(Agreement::new(node_id));
        let machine = Machine::new(host, agreement.clone(), snapshots.clone(), snapshot_meta);
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
            .map_err(|error| Failure::Unavailable(format!("the identity cannot be written: {error}")))?;
        let network = Network::new(links.clone());
        let raft = Raft::new(node_id, Arc::new(config), network, log.clone(), machine)
            .await
            .map_err(|f| stopped(&f))?;
        let lease = Arc::new(Lease::new(raft.metrics(), acks.clone(), timing.promise()));
        let leader_contact = Arc::new(LeaderContact::new(timing.forget_leader_after()));
        let sends_heartbeats = Arc::new(AtomicBool::new(true));
        let peer_maintenance =
            peer_maintenance::run(raft.clone(), links.clone(), acks, timing, sends_heartbeats.clone());
        // A promise not to vote outlives the process that gave it, and its start is not recorded. So this node neither votes nor stands
        // for election for as long as it could still hold.
        let may_have_promised = home.cell().is_some() && !is_only_voter(&raft, node_id);
        let silent_for = if may_have_promised { longest_promise } else { Duration::ZERO };
        let election_trigger = Arc::new(ElectionTrigger::new(
            raft.clone(),
            leader_contact.clone(),
            timing,
            counters.clone(),
            silent_for,
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
            election_trigger: election_trigger.clone(),
            _tasks: Arc::new(tasks),
            sends_heartbeats,
            handing_over: HandOver::default(),
            space_reports,
        };
        consensus.stay_silent(silent_for, home.clone());
        let service = PeerService::new(PeerServiceParts {
            raft,
            log: log.space_watch(),
            home,
            own,
            given,
            snapshots: &snapshots,
            leader_contact,
            election_trigger,
            counters,
            timing,
            versions,
            agreement,
        });
        Ok((consensus, service))
    }

    /// Suppresses elections for this long; after that only the current promise counts.
    fn stay_silent(&self, silent_for: Duration, home: Arc<DataDir>) {
        let (raft, election_trigger) = (self.raft.clone(), self.election_trigger.clone());
        let promise = self.timing.promise();
        raft.runtime_config().elect(silent_for.is_zero());
        tokio::spawn(async move {
            tokio::time::sleep(silent_for).await;
            raft.runtime_config().elect(election_trigger.is_eligible());
            if let Err(error) = promise::settle(&home, promise) {
                tracing::warn!(%error, "failed to write the identity: the next start waits longer than it must");
            }
        });
    }

    /// The timing of heartbeats and elections.
    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// What is needed to contact another node on behalf of this one.
    pub(crate) fn contact(&self, own: Identity) -> Contact<'_> {
        let versions = self.links.versions();
        Contact { dialer: &self.dialer, timing: &self.timing, versions, own }
    }

    /// Whether this node is the only one that votes.
    pub(crate) fn is_alone(&self) -> bool {
        is_only_voter(&self.raft, self.node_id)
    }

    /// Whether this node has ever been part of a cell.
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

    /// Stands for election at once, without an election timeout. For cells of one.
    pub(crate) async fn campaign(&self) -> Result<(), Failure> {
        self.raft.trigger().elect(false).await.map_err(|f| stopped(&f))
    }

    /// Proposes an entry. The future ends when it is applied, or has failed.
    pub(crate) async fn propose(
        &self,
        proposal: Proposal,
    ) -> Result<impl Future<Output = Result<(), Failure>> + use<>, Failure> {
        let (responder, done) = ProgressResponder::complete_only();
        self.raft.client_write_ff(proposal, Some(responder)).await.map_err(|f| stopped(&f))?;
        Ok(async move {
            match done.await {
                Ok(Ok(_)) => Ok(()),
                // It never got into the log.
                Ok(Err(ClientWriteError::ForwardToLeader(to))) => Err(match to.reason {
                    ForwardReason::LeaseExpired => Failure::no_majority(),
                    _ => Failure::NotLeader { leader: to.leader_node.map(|member| member.client) },
                }),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "an entry is in doubt");
                    Err(Failure::unknown("the leader has changed"))
                }
                Err(_) => Err(Failure::unknown("the node lost its office on the way")),
            }
        })
    }

    /// Commits an entry that changes nothing, and waits until it is applied here. Everything that was in the log when it
    /// was proposed, committed or not, is applied before it.
    pub(crate) async fn commit_barrier(&self, proposer: u64, now: CellTime) -> Result<(), Failure> {
        let batch = Arc::new(EncodedBatch::new(Batch { now, utc_ms: utc::now_ms(), commands: Vec::new() }));
        self.propose(Proposal { proposer, sequence: BARRIER, batch }).await?.await
    }

    /// Waits until everything that was ever acknowledged is applied here and a majority follows this node.
    pub(crate) async fn confirm_leadership(&self) -> Result<(), Failure> {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(stopped(&fatal)),
            Err(error) => Err(Failure::Unavailable(error.to_string())),
        }
    }

    /// Enables or disables this node's heartbeats as a leader.
    pub(crate) fn set_heartbeats(&self, enabled: bool) {
        self.sends_heartbeats.store(enabled, Ordering::Relaxed);
        self.raft.runtime_config().heartbeat(enabled);
    }

    /// The leader's lease.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Whether this node may serve if it leads, by what is known about the members' tables (S13). In the minority it
    /// stops serving for good.
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

    /// Whether this node may lead: otherwise it stands for no election, and sends no heartbeats if it leads.
    pub(crate) fn set_eligible(&self, is_eligible: bool) {
        self.raft.runtime_config().elect(is_eligible);
        self.election_trigger.set_eligible(is_eligible);
        self.set_heartbeats(is_eligible);
    }

    /// This node has just been elected: what members reported before may be outdated.
    pub(crate) fn forget_reports(&self) {
        self.agreement.forget_reports();
    }

    /// Why this node has stopped serving: its table differs from that of the majority.
    pub fn stopped_by_disagreement(&self) -> Option<Disagreement> {
        self.agreement.stopped()
    }

    /// On a leader: how a member's table differs, if it does.
    pub fn disagreement_of(&self, member: u64) -> Option<Disagreement> {
        self.agreement.differs(member)
    }

    /// Has a snapshot taken, so that the log can be cut.
    pub(crate) async fn take_snapshot(&self) -> Result<(), Failure> {
        self.raft.trigger().snapshot().await.map_err(|f| stopped(&f))
    }

    /// What raft knows.
    pub fn status(&self) -> RaftStatus {
        let metrics = self.raft.metrics();
        let mut status = status::of(&metrics.borrow_watched(), &self.links.round_trips());
        if !status.leads && !self.leader_contact.is_recent() {
            (status.leader, status.leader_address) = (None, None);
        }
        status
    }

    /// How far the followers are, if this node leads.
    pub(crate) fn progress(&self) -> Progress {
        let metrics = self.raft.metrics();
        status::progress(&metrics.borrow_watched(), 2 * self.timing.election_max)
    }

    /// Waits until the leader, the term or the health of raft changes.
    pub(crate) async fn changed(&self, seen: &RaftStatus) -> RaftStatus {
        // These change with the leader alone, not with every entry.
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

    /// Tells the others that this leader stops, if it leads. It must have left office for good: nobody waits for its lease then.
    pub(crate) async fn say_goodbye(&self) {
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
