//! A real node on a simulated machine, with a disk that loses and tears unsynced writes.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_server::config::NodeConfig;
use lockkeeper_server::node::Node as Server;
use lockkeeper_server::raft::Timing;
use lockkeeper_server::raft::log::{Faults, FaultyDisk, LogConfig, SyncMode};

use super::faults::DiskState;
use super::machine::{Machine, true_now};
use super::network::{MachineId, Network, address_of};
use super::random::Random;
use super::recorder::Recorder;
use crate::checkers::history::LeaderTime;

/// Interval between checks for actions.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for a leader with a diverged table to notice it, after the lease that it may have.
const DETECTION_MAX: Duration = Duration::from_secs(3);
/// Small, so that a run goes through many of them.
const SEGMENT_BYTES: u64 = 16 << 10;

/// How a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The process is killed; its writes survive.
    Killed,
    /// Power failure: unsynced writes are lost or torn, and peers get no reset.
    PowerCut,
}

/// An administrative action.
#[derive(Debug, Clone, Copy)]
pub(super) enum AdminAction {
    /// Add this node.
    Add(MachineId),
    /// Remove this node.
    Remove(MachineId),
    /// Make the table differ from the others.
    Damage,
}

/// Digests of the tables after each entry, which must be equal on all nodes.
#[derive(Clone, Default)]
pub(super) struct Digests {
    known: Arc<Mutex<BTreeMap<u64, (MachineId, u32)>>>,
}

impl Digests {
    fn compare(&self, node: MachineId, (through, digest): (u64, u32)) -> Option<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, expected) = *known.entry(through).or_insert((node, digest));
        (expected != digest)
            .then(|| format!("nodes {first} and {node} have different tables after entry {through}"))
    }
}

/// A node, across restarts.
pub(super) struct Node {
    pub(super) id: MachineId,
    pub(super) machine: Option<Machine>,
    /// Whether it was removed from the cell.
    pub(super) retired: bool,
    pub(super) was_started: bool,
    disk: FaultyDisk,
    folder: PathBuf,
    rate: f64,
    snapshot_every: u64,
    actions: Arc<Mutex<VecDeque<AdminAction>>>,
    leads: Arc<AtomicBool>,
    digests: Digests,
    records_time: bool,
    /// Time limit for noticing a diverged table.
    detection_max: Duration,
}

impl Node {
    pub(super) fn new(
        id: MachineId,
        folder: PathBuf,
        rate: f64,
        snapshot_every: u64,
        digests: &Digests,
        records_time: bool,
        promise_max: Duration,
    ) -> Node {
        Node {
            id,
            machine: None,
            retired: false,
            was_started: false,
            disk: FaultyDisk::new(),
            folder,
            rate,
            snapshot_every,
            actions: Arc::default(),
            leads: Arc::default(),
            digests: digests.clone(),
            records_time,
            detection_max: DETECTION_MAX + promise_max,
        }
    }

    /// Starts the node.
    pub(super) fn start(
        &mut self,
        network: &Network,
        members: &[MachineId],
        timing: Timing,
        random: Random,
        recorder: &Recorder,
        now: Duration,
    ) -> std::io::Result<()> {
        self.was_started = true;
        let machine = Machine::new(self.id, network, random, self.rate, now)?;
        let members: BTreeMap<u64, String> =
            members.iter().map(|id| (u64::from(*id), address_of(*id))).collect();
        let config = NodeConfig {
            node_id: Some(u64::from(self.id)),
            members,
            listen: Some(address_of(self.id)),
            timing,
            log: LogConfig {
                segment_bytes: SEGMENT_BYTES,
                cache_bytes: 8 << 10,
                sync: SyncMode::Inline,
                prepare_ahead: false,
            },
            log_disk: Some(Arc::new(self.disk.clone())),
            commands_between_snapshots: self.snapshot_every,
            entries_behind_snapshot: self.snapshot_every / 4,
            ..NodeConfig::durable(&self.folder)
        };
        let (id, recorder) = (self.id, recorder.clone());
        let (actions, digests) = (self.actions.clone(), self.digests.clone());
        let leads = self.leads.clone();
        let (records_time, detection_max) = (self.records_time, self.detection_max);
        machine.spawn(async move {
            let server = match Server::open(config).await {
                Ok(server) => server,
                Err(error) => {
                    return recorder.record_failure(true_now(), format!("node {id} does not start: {error}"));
                }
            };
            let run_actions = async {
                let (mut is_damaged, mut serving_since) = (false, None::<Duration>);
                loop {
                    let action = actions.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    match action {
                        // Only the leader can do this; others refuse.
                        Some(AdminAction::Add(node)) => {
                            let added = server.api().add_member(u64::from(node), &address_of(node)).await;
                            recorder.count(if added.is_ok() { "members added" } else { "members not added" });
                        }
                        Some(AdminAction::Remove(node)) => {
                            let removed = server.api().remove_member(u64::from(node)).await;
                            recorder.count(if removed.is_ok() {
                                "members removed"
                            } else {
                                "members not removed"
                            });
                        }
                        Some(AdminAction::Damage) => {
                            server.api().make_table_different();
                            recorder.count("tables damaged");
                            is_damaged = true;
                        }
                        None => {}
                    }
                    let leads_now = server.api().check_leads().is_ok();
                    leads.store(leads_now, Ordering::Relaxed);
                    if leads_now && records_time {
                        let cell_time_ms = server.api().status().cell_time_ms;
                        let time = LeaderTime { node: id, cell_time_ms, seen: true_now() };
                        recorder.update(|history| history.leader_times.push(time));
                    }
                    if is_damaged {
                        // A restart rebuilds the table from the log: such a run has no snapshots.
                        let serves = leads.load(Ordering::Relaxed);
                        serving_since = serving_since.filter(|_| serves).or(serves.then(true_now));
                        if serving_since.is_some_and(|since| true_now() - since > detection_max) {
                            recorder.record_failure(
                                true_now(),
                                format!("node {id} keeps serving although its table differs"),
                            );
                            serving_since = None;
                        }
                    } else if let Some(difference) = digests.compare(id, server.api().digest()) {
                        recorder.record_failure(true_now(), difference);
                    }
                    tokio::time::sleep(CHECK_INTERVAL).await;
                }
            };
            tokio::select! {
                biased;
                why = server.ended() => recorder.record_failure(true_now(), format!("node {id} has ended: {why}")),
                () = run_actions => {}
            }
        });
        self.machine = Some(machine);
        Ok(())
    }

    /// Ends the process.
    pub(super) fn kill(&mut self, end: End, network: &Network, random: &mut Random) {
        let Some(mut machine) = self.machine.take() else { return };
        self.leads.store(false, Ordering::Relaxed);
        network.lose(self.id, end == End::Killed);
        // The next start sees the disk as of now, whatever the dropped process still does.
        self.disk = match end {
            End::Killed => self.disk.copy(),
            End::PowerCut => self.disk.crash(&mut |bound| random.below(bound as u64) as usize),
        };
        machine.kill();
    }

    /// Sets the state of its disk.
    pub(super) fn set_disk(&self, state: DiskState) {
        self.disk.set_faults(match state {
            DiskState::Healthy => Faults::default(),
            DiskState::Slow(sync_pause) => Faults { sync_pause, ..Faults::default() },
            DiskState::Full => Faults { capacity_bytes: Some(0), ..Faults::default() },
        });
    }

    /// Whether it led recently.
    pub(super) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Requests an administrative action.
    pub(super) fn request(&self, action: AdminAction) {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner).push_back(action);
    }
}
