//! A node of the cell on a simulated machine: the real one, with a disk that forgets and tears.

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

/// Between two looks for orders.
const LOOK: Duration = Duration::from_millis(50);
/// A leader whose table differs has heard of it from the others within this time.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);
/// Small, so that a run goes through many of them.
const SEGMENT_BYTES: u64 = 16 << 10;

/// How it ends when it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The process is killed; what it has written stays.
    Killed,
    /// The power fails: what was not synced is lost or torn, and nobody is told.
    PowerCut,
}

/// What people tell a node to do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// Take in this node.
    Add(MachineId),
    /// Remove this node.
    Remove(MachineId),
    /// Have a table that differs from those of the others.
    Damage,
}

/// What the tables of all nodes were after each entry: they must be the same everywhere.
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

/// What stays the same over all lives of a node.
pub(super) struct Node {
    pub(super) id: MachineId,
    pub(super) machine: Option<Machine>,
    /// It was removed from the cell: that it ends is no trouble.
    pub(super) retired: bool,
    pub(super) was_started: bool,
    disk: FaultyDisk,
    folder: PathBuf,
    rate: f64,
    snapshot_every: u64,
    orders: Arc<Mutex<VecDeque<Order>>>,
    leads: Arc<AtomicBool>,
    digests: Digests,
}

impl Node {
    pub(super) fn new(
        id: MachineId,
        folder: PathBuf,
        rate: f64,
        snapshot_every: u64,
        digests: &Digests,
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
            orders: Arc::default(),
            leads: Arc::default(),
            digests: digests.clone(),
        }
    }

    /// A new life.
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
        let (orders, digests) = (self.orders.clone(), self.digests.clone());
        let leads = self.leads.clone();
        machine.spawn(async move {
            let server = match Server::open(config).await {
                Ok(server) => server,
                Err(error) => {
                    return recorder.trouble(true_now(), format!("node {id} does not start: {error}"));
                }
            };
            let obey = async {
                let (mut damaged, mut serves_since) = (false, None::<Duration>);
                loop {
                    let order = orders.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    match order {
                        // Only the leader can; the others say so.
                        Some(Order::Add(node)) => {
                            let added = server.api().add_member(u64::from(node), &address_of(node)).await;
                            recorder.count(if added.is_ok() { "members added" } else { "members not added" });
                        }
                        Some(Order::Remove(node)) => {
                            let removed = server.api().remove_member(u64::from(node)).await;
                            recorder.count(if removed.is_ok() {
                                "members removed"
                            } else {
                                "members not removed"
                            });
                        }
                        Some(Order::Damage) => {
                            server.api().make_table_different();
                            recorder.count("tables damaged");
                            damaged = true;
                        }
                        None => {}
                    }
                    leads.store(server.api().may_answer().is_ok(), Ordering::Relaxed);
                    if damaged {
                        // Its next life makes the table anew from the log: there are no snapshots in such a run.
                        let serves = leads.load(Ordering::Relaxed);
                        serves_since = serves_since.filter(|_| serves).or(serves.then(true_now));
                        if serves_since.is_some_and(|since| true_now() - since > NOTICED_WITHIN) {
                            recorder.trouble(
                                true_now(),
                                format!("node {id} goes on serving although its table differs"),
                            );
                            serves_since = None;
                        }
                    } else if let Some(difference) = digests.compare(id, server.api().digest()) {
                        recorder.trouble(true_now(), difference);
                    }
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::select! {
                biased;
                why = server.ended() => recorder.trouble(true_now(), format!("node {id} has ended: {why}")),
                () = obey => {}
            }
        });
        self.machine = Some(machine);
        Ok(())
    }

    /// The end of this life.
    pub(super) fn kill(&mut self, end: End, network: &Network, random: &mut Random) {
        let Some(mut machine) = self.machine.take() else { return };
        self.leads.store(false, Ordering::Relaxed);
        network.lose(self.id, end == End::Killed);
        // The next life finds the disk as it was at this moment, whatever the last one still does while it goes.
        self.disk = match end {
            End::Killed => self.disk.copy(),
            End::PowerCut => self.disk.crash(&mut |bound| random.below(bound as u64) as usize),
        };
        machine.kill();
    }

    /// Changes its disk, for this life.
    pub(super) fn set_disk(&self, state: DiskState) {
        self.disk.set_faults(match state {
            DiskState::Whole => Faults::default(),
            DiskState::Slow(sync_pause) => Faults { sync_pause, ..Faults::default() },
            DiskState::Full => Faults { capacity_bytes: Some(0), ..Faults::default() },
        });
    }

    /// Whether it was in office a moment ago.
    pub(super) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Tells it to do something.
    pub(super) fn order(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push_back(order);
    }
}
