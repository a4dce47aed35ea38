//! A real node on a simulated machine, with a disk that loses and tears unsynced writes.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::{AccessChange, Command, Quota};
use lockkeeper_server::config::NodeConfig;
use lockkeeper_server::formation::versions::Versions;
use lockkeeper_server::node::Node as Server;
use lockkeeper_server::raft::Timing;
use lockkeeper_server::raft::log::{Faults, FaultyDisk, LogConfig, SyncMode};

use super::faults::DiskState;
use super::machine::{Machine, true_now};
use super::network::{MachineId, Network, address_of};
use super::plain_client::QUOTA_NAMESPACE;
use super::random::Random;
use super::recorder::Recorder;
use super::setup::NO_SNAPSHOTS;
use super::tables::{Digests, TableWatch};
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
    /// Transfer the leadership to this node.
    Transfer(MachineId),
    /// Set the quota of plain clients.
    SetQuota,
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
    /// Whether its table may differ, across restarts.
    damaged: Arc<AtomicBool>,
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
            damaged: Arc::default(),
            records_time,
            detection_max: DETECTION_MAX + promise_max,
        }
    }

    /// Starts the node.
    pub(super) fn start(
        &mut self,
        network: &Network,
        members: &[MachineId],
        (timing, versions): (Timing, Versions),
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
            versions,
            ..NodeConfig::durable(&self.folder)
        };
        let (id, recorder, actions) = (self.id, recorder.clone(), self.actions.clone());
        let (leads, records_time) = (self.leads.clone(), self.records_time);
        let has_snapshots = self.snapshot_every < NO_SNAPSHOTS;
        let mut tables = TableWatch::new(
            id,
            self.digests.clone(),
            self.damaged.clone(),
            self.detection_max,
            has_snapshots,
        );
        machine.spawn(async move {
            let server = match Server::open(config).await {
                Ok(server) => server,
                Err(error) => {
                    return recorder.record_failure(true_now(), format!("node {id} does not start: {error}"));
                }
            };
            let run_actions = async {
                loop {
                    let action = actions.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    if let Some(action) = action {
                        run_action(action, &server, &mut tables, &recorder).await;
                    }
                    let leads_now = server.api().check_leads().is_ok();
                    leads.store(leads_now, Ordering::Relaxed);
                    if leads_now && records_time {
                        record_time(id, &server, &recorder);
                    }
                    tables.check(&server, &recorder);
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

/// Records cell time if anything depends on it. Otherwise it is not logged (S2).
fn record_time(node: MachineId, server: &Server, recorder: &Recorder) {
    let status = server.api().status();
    if status.sessions > 0 {
        let time = LeaderTime { node, cell_time_ms: status.cell_time_ms, seen: true_now() };
        recorder.update(|history| history.leader_times.push(time));
    }
}

/// Runs an action. Only the leader can change members or the quota; others refuse.
async fn run_action(action: AdminAction, server: &Server, tables: &mut TableWatch, recorder: &Recorder) {
    let api = server.api();
    match action {
        AdminAction::Add(node) => {
            let added = api.add_member(u64::from(node), &address_of(node)).await;
            recorder.count(if added.is_ok() { "members added" } else { "members not added" });
        }
        AdminAction::Remove(node) => {
            let removed = api.remove_member(u64::from(node)).await;
            recorder.count(if removed.is_ok() { "members removed" } else { "members not removed" });
        }
        AdminAction::Damage => {
            tables.damage(server);
            recorder.count("tables damaged");
        }
        // It may take seconds, during which the node is still observed.
        AdminAction::Transfer(to) => {
            let (api, recorder) = (api.clone(), recorder.clone());
            tokio::spawn(async move {
                let transferred = api.hand_over_leadership(u64::from(to)).await;
                recorder.count(if transferred.is_ok() { "transfers completed" } else { "transfers failed" });
            });
        }
        AdminAction::SetQuota => {
            let quota = Quota { locks: Some(1), ..Quota::default() };
            let change = AccessChange::SetQuota { namespace: QUOTA_NAMESPACE.into(), quota };
            let set = api.command(Command::ChangeAccess { by: Default::default(), change }).await;
            recorder.count(if set.is_ok() { "quotas set" } else { "quotas not set" });
        }
    }
}
