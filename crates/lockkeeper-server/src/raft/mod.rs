//! Consensus: openraft with our log on disk and our lock table as its state machine.
//! Nothing outside this folder names an openraft type, so that the choice can change.

pub mod log;
mod machine;
mod network;
pub mod snapshot;
pub mod types;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, RaftError};
use openraft::impls::{BasicNode, ProgressResponder};
use openraft::{Config, ReadPolicy, ServerState, SnapshotPolicy};

use self::log::LogStore;
use self::machine::Machine;
use self::network::Network;
use self::snapshot::SnapshotStore;
use self::types::{Proposal, StoredMembership, TypeConfig};
use crate::failure::Failure;
use crate::shared::Shared;

type Raft = openraft::Raft<TypeConfig, Machine>;

/// Log entries that are kept behind a snapshot, for followers that are only a little late.
const ENTRIES_KEPT_BEHIND_SNAPSHOT: u64 = 1_000;

/// A node's part in the agreement.
#[derive(Clone)]
pub struct Consensus {
    raft: Raft,
}

/// What raft knows about itself and the cell.
#[derive(Debug, Clone, Default)]
pub struct RaftStatus {
    /// The leader's id.
    pub leader: Option<u64>,
    /// The leader's address.
    pub leader_address: Option<String>,
    /// Whether this node leads, by raft's own account.
    pub leads: bool,
    /// The term.
    pub term: u64,
    /// Index of the last entry in the log.
    pub last_log: u64,
    /// Index of the last entry applied.
    pub applied: u64,
    /// Index of the last entry that the snapshot covers.
    pub snapshot: u64,
    /// Index of the last entry that was removed from the log.
    pub purged: u64,
    /// Id, address and right to vote of each member.
    pub members: Vec<(u64, String, bool)>,
    /// Why raft has stopped, if it has.
    pub stopped: Option<String>,
}

/// How fast an absent leader is noticed.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between two signs of life of the leader.
    pub heartbeat: Duration,
    /// Shortest silence after which a node stands for election.
    pub election_min: Duration,
    /// Longest.
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(900),
        }
    }
}

impl Consensus {
    /// Starts raft on what the log and the snapshot hold.
    pub(crate) async fn start(
        node_id: u64,
        timing: Timing,
        log: LogStore,
        snapshots: SnapshotStore,
        snapshot_meta: Option<types::SnapshotMeta>,
        shared: Arc<Shared>,
    ) -> Result<Consensus, Failure> {
        let config = Config {
            cluster_name: "lockkeeper".to_owned(),
            heartbeat_interval: timing.heartbeat.as_millis() as u64,
            election_timeout_min: timing.election_min.as_millis() as u64,
            election_timeout_max: timing.election_max.as_millis() as u64,
            // Snapshots are asked for by the number of commands, not of entries.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: ENTRIES_KEPT_BEHIND_SNAPSHOT,
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        let config = config.validate().map_err(|error| Failure::Invalid(error.to_string()))?;
        let machine = Machine::new(shared, snapshots, snapshot_meta);
        let raft =
            Raft::new(node_id, Arc::new(config), Network, log, machine).await.map_err(|f| stopped(&f))?;
        Ok(Consensus { raft })
    }

    /// Forms the cell with these members, if this node has never been part of one.
    pub(crate) async fn form(&self, members: &BTreeMap<u64, String>) -> Result<(), Failure> {
        if self.raft.is_initialized().await.map_err(|f| stopped(&f))? {
            return Ok(());
        }
        let nodes: BTreeMap<u64, BasicNode> =
            members.iter().map(|(id, address)| (*id, BasicNode::new(address))).collect();
        self.raft.initialize(nodes).await.map_err(|error| Failure::Unavailable(error.to_string()))
    }

    /// Stands for election without waiting for the silence of a leader: right for a cell of one.
    pub(crate) async fn stand(&self) -> Result<(), Failure> {
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
                Ok(Err(ClientWriteError::ForwardToLeader(to))) => {
                    Err(Failure::NotLeader { leader: to.leader_node.map(|node| node.addr) })
                }
                Ok(Err(error)) => Err(Failure::Unknown(error.to_string())),
                Err(_) => Err(Failure::Unknown("the node lost its office on the way".to_owned())),
            }
        })
    }

    /// Waits until everything that was ever acknowledged is applied here and a majority follows this node.
    pub(crate) async fn confirm_leadership(&self) -> Result<(), Failure> {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(stopped(&fatal)),
            Err(error) => Err(Failure::Unavailable(error.to_string())),
        }
    }

    /// Has a snapshot taken, so that the log can be cut.
    pub(crate) async fn take_snapshot(&self) -> Result<(), Failure> {
        self.raft.trigger().snapshot().await.map_err(|f| stopped(&f))
    }

    /// What raft knows.
    pub fn status(&self) -> RaftStatus {
        let metrics = self.raft.metrics();
        let m = metrics.borrow_watched();
        let members = members_of(&m.membership_config);
        RaftStatus {
            leader: m.current_leader,
            leader_address: m
                .current_leader
                .and_then(|leader| members.iter().find(|(id, ..)| *id == leader))
                .map(|(_, address, _)| address.clone()),
            leads: m.state == ServerState::Leader,
            term: m.current_term,
            last_log: m.last_log_index.unwrap_or(0),
            applied: m.last_applied.map_or(0, |id| id.index),
            snapshot: m.snapshot.map_or(0, |id| id.index),
            purged: m.purged.map_or(0, |id| id.index),
            members,
            stopped: m.running_state.as_ref().err().map(ToString::to_string),
        }
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

    /// Stops raft.
    pub(crate) async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop cleanly");
        }
    }
}

fn members_of(membership: &StoredMembership) -> Vec<(u64, String, bool)> {
    let voters: Vec<u64> = membership.membership().voter_ids().collect();
    membership.nodes().map(|(id, node)| (*id, node.addr.clone(), voters.contains(id))).collect()
}

fn stopped(fatal: &Fatal<TypeConfig>) -> Failure {
    Failure::Unavailable(format!("the node has stopped: {fatal}"))
}
