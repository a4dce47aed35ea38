//! Deterministic simulation of a whole cell and its clients in one thread: the real code of the node and of the library, on
//! simulated machines, disks, clocks and a simulated network. A seed determines every event.
//!
//! Time advances in small steps. In each step, due packets arrive, planned faults happen, and every machine runs by its own
//! clock, one after the other. Nothing else happens, so a seed can be replayed.
//!
//! turmoil lacks two things that leases depend on: clocks with different speeds, and paused processes. So the machines are
//! our own (docs/adr/0013-simulation.md).

mod client;
mod distance;
mod faults;
mod machine;
mod network;
mod node;
mod plain_client;
pub mod proof;
mod random;
mod recorder;
mod setup;
mod tables;
mod upgrades;
mod waiter;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lockkeeper::Keeper;
use lockkeeper_core::mutation;
pub use lockkeeper_core::mutation::Mutation;
use tempfile::TempDir;

use self::client::{LOCKS, RETRY_PAUSE, Work};
use self::distance::Distance;
use self::faults::{DiskState, Emphasis, Fault, Obstacle};
use self::machine::{Machine, true_now};
use self::network::{MachineId, Network, address_of};
use self::node::{AdminAction, End, Node};
use self::random::Random;
use self::recorder::{Recorded, Recorder};
use self::setup::Setup;
use self::tables::Digests;
use self::upgrades::Upgrades;
use crate::checkers::history::{Leftover, Read};
use crate::checkers::{self, History};

const NODES: [MachineId; 3] = [1, 2, 3];
/// The first machine id of clients.
const CLIENTS_FROM: MachineId = 11;
/// The client that checks the final state.
const LAST: MachineId = 99;
/// After all faults are healed, the cell must be empty and answer within this time.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// How long a follower's disk stays slow after its link to the leader is healed.
const SLOW_AFTER_HEAL: Duration = Duration::from_secs(2);
/// Time reserved for reading the final state within that limit.
const FINAL_READS_MAX: Duration = Duration::from_secs(10);

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Determines the whole run.
    pub seed: u64,
    /// Duration of the faults.
    pub duration: Duration,
    /// Whether to keep a trace of all events.
    pub trace: bool,
    /// A bug to reintroduce.
    pub mutation: Option<Mutation>,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Violations: the name of the checker, and a description.
    pub violations: Vec<(&'static str, String)>,
    /// Hash of the trace.
    pub hash: u64,
    /// The setup that the seed chose.
    pub setup: String,
    /// The trace, if requested.
    pub trace: Vec<String>,
    /// Event counts.
    pub counts: BTreeMap<String, u64>,
    /// Number of grants.
    pub grants: usize,
}

/// Runs a seed.
pub fn run(options: RunOptions) -> io::Result<Outcome> {
    machine::watch_for_panics();
    mutation::put_back(options.mutation);
    let outcome = World::new(options).and_then(|mut world| {
        world.run_to_end()?;
        Ok(world.evaluate())
    });
    mutation::put_back(None);
    outcome
}

/// The simulated time, for log lines.
pub fn now() -> Duration {
    true_now()
}

struct World {
    options: RunOptions,
    random: Random,
    now: Duration,
    step: Duration,
    network: Network,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    faults: VecDeque<(Duration, Fault)>,
    /// A majority to lose shortly before the next lapse of a session: duration and back-off.
    awaits_lapse: Option<(Duration, Duration)>,
    recorder: Recorder,
    work: Work,
    clocks_within_drift: bool,
    distance: Distance,
    upgrades: Upgrades,
    /// Chooses the timing of each start of a node.
    timings: Random,
    /// Whether the final state could be read.
    is_final_state_read: bool,
    setup: String,
    _folder: TempDir,
}

struct Client {
    id: MachineId,
    kind: ClientKind,
    machine: Machine,
    rate: f64,
    workers: u32,
}

/// The kind of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientKind {
    /// The library.
    Library,
    /// Raw frames, without the library.
    Plain,
    /// The library, waiting for the lock of a scenario.
    Waiter,
}

impl World {
    fn new(options: RunOptions) -> io::Result<World> {
        let mut random = Random::new(options.seed);
        let recorder = Recorder::default();
        if options.trace {
            recorder.keep_trace();
        }
        let setup = Setup::at_random(options.seed, &mut random, options.duration);
        let off_by = if setup.clocks_within_drift { 0.004_9 } else { 0.08 };
        let rate = |random: &mut Random| 1.0 + off_by * (random.below(2_001) as f64 / 1_000.0 - 1.0);
        // Other runs set cell time back further: a leader without a majority does not commit it.
        let records_time = setup.emphasis == Emphasis::QuietCell;
        let promise_max = setup.distance.promise_max();
        let folder = memory_folder()?;
        let digests = Digests::default();
        let nodes = (1..=4)
            .map(|id| {
                let path = folder.path().join(format!("node-{id}"));
                Node::new(
                    id,
                    path,
                    rate(&mut random),
                    setup.snapshot_every,
                    &digests,
                    records_time,
                    promise_max,
                )
            })
            .collect();
        let addresses: Vec<String> = (1..=4).map(address_of).collect();
        let work = Work {
            url: format!("lockkeeper://{}", addresses[..if setup.kinds.members { 4 } else { 3 }].join(",")),
            ttl: setup.ttl,
            recorder: recorder.clone(),
            until: options.duration,
            busy: Arc::default(),
            requests: Arc::default(),
            next_lapse: Arc::default(),
            emphasis: setup.emphasis,
            has_quota: setup.has_quota,
        };
        let mut world = World {
            options,
            now: Duration::ZERO,
            step: setup.step,
            network: setup.network,
            nodes,
            clients: Vec::new(),
            faults: setup.faults.into(),
            awaits_lapse: None,
            recorder,
            work,
            clocks_within_drift: setup.clocks_within_drift,
            distance: setup.distance,
            upgrades: setup.upgrades,
            timings: Random::new(options.seed ^ 0x0074_696d_696e_6773),
            is_final_state_read: false,
            setup: setup.description,
            _folder: folder,
            random: random.fork(),
        };
        for id in NODES {
            world.start(id)?;
        }
        for (id, kind) in setup.clients {
            let rate = rate(&mut random);
            let workers = 1 + random.below(2) as u32;
            let machine = world.new_client(id, kind, rate, workers)?;
            world.clients.push(Client { id, kind, machine, rate, workers });
        }
        Ok(world)
    }

    fn new_client(
        &mut self,
        id: MachineId,
        kind: ClientKind,
        rate: f64,
        workers: u32,
    ) -> io::Result<Machine> {
        let machine = Machine::new(id, &self.network, self.random.fork(), rate, self.now)?;
        let (work, random) = (self.work.clone(), self.random.fork());
        let nodes = self.nodes.iter().map(|node| node.id).collect();
        match kind {
            ClientKind::Library => machine.spawn(client::run(id, workers, work, random)),
            ClientKind::Waiter => machine.spawn(waiter::run(id, work)),
            ClientKind::Plain => machine.spawn(plain_client::run(id, nodes, work, random)),
        }
        Ok(machine)
    }

    fn start(&mut self, id: MachineId) -> io::Result<()> {
        let random = self.random.fork();
        let node = &mut self.nodes[id as usize - 1];
        if node.machine.is_some() || node.retired {
            return Ok(());
        }
        let members: &[MachineId] = if id > 3 { &[1, 2, 3, 4] } else { &NODES };
        let timing = self.distance.timing(id, !node.was_started, &mut self.timings);
        let versions = self.upgrades.versions(id, !node.was_started);
        node.start(&self.network, members, (timing, versions), random, &self.recorder, self.now)
    }

    /// Advances the time by one step.
    fn step(&mut self) -> io::Result<()> {
        self.now += self.step;
        self.network.advance(self.now);
        while self.faults.front().is_some_and(|(at, _)| *at <= self.now) {
            if let Some((_, fault)) = self.faults.pop_front() {
                self.inject(fault)?;
            }
        }
        self.lose_majority_before_lapse();
        let mut machines: Vec<&mut Machine> =
            self.nodes.iter_mut().filter_map(|node| node.machine.as_mut()).collect();
        machines.extend(self.clients.iter_mut().map(|client| &mut client.machine));
        // Rotates the order of machines.
        let first = self.random.below(machines.len() as u64) as usize;
        machines.rotate_left(first);
        for machine in machines {
            machine.run_until(self.now);
        }
        for panic in machine::panics() {
            self.recorder.record_failure(self.now, panic);
        }
        Ok(())
    }

    fn inject(&mut self, fault: Fault) -> io::Result<()> {
        self.recorder.record_event(self.now, &format!("{fault:?}"));
        match fault {
            Fault::Kill(id, end) => {
                self.nodes[id as usize - 1].kill(end, &self.network, &mut self.random);
                self.recorder.count(match end {
                    End::Killed => "nodes killed",
                    End::PowerCut => "power cuts",
                });
            }
            Fault::KillLeader(starts) => {
                if let Some(leader) = self.nodes.iter().find(|node| node.leads()).map(|node| node.id) {
                    self.plan(self.now, Fault::Kill(leader, End::Killed));
                    self.plan(self.now + starts, Fault::Start(leader));
                }
            }
            Fault::Start(id) => self.start(id)?,
            Fault::Stop(id, time) => {
                let until = self.now + time;
                let node =
                    self.nodes.iter_mut().filter(|node| node.id == id).filter_map(|n| n.machine.as_mut());
                let client = self.clients.iter_mut().filter(|client| client.id == id).map(|c| &mut c.machine);
                node.chain(client).for_each(|machine| machine.pause_until(until));
                self.recorder.count("stops");
            }
            Fault::Cut(from, to) => {
                self.network.cut(from, to);
                self.recorder.count("cuts");
            }
            Fault::Split(leader_side, duration) => self.split(leader_side, duration),
            Fault::Slow(from, to, delay) => self.network.slow(from, to, delay),
            Fault::Heal(one, other) => self.network.heal(one, other),
            Fault::Reset(one, other) => self.network.reset(one, other),
            Fault::Disturb(one, other, how) => {
                self.network.disturb_one(one, other, how);
                self.recorder.count("single streams disturbed");
            }
            Fault::LoseMajority(duration, back_off) => self.lose_majority(duration, back_off),
            Fault::LoseMajorityAtLapse(duration, back_off) => self.awaits_lapse = Some((duration, back_off)),
            Fault::HealForNew(one, other, back_off) => self.network.heal_for_new(one, other, back_off),
            Fault::SetClock(id, by_ms) => {
                let client = self.clients.iter().filter(|client| client.id == id);
                client.for_each(|client| client.machine.set_clock(by_ms));
            }
            Fault::Replace(id) => self.replace(id)?,
            Fault::Change(action) => self.nodes.iter().for_each(|node| node.request(action)),
            Fault::Transfer(obstacle, lasts) => self.transfer(obstacle, lasts),
            Fault::Damage(id) => self.nodes[id as usize - 1].request(AdminAction::Damage),
            Fault::Disk(id, state) => {
                self.nodes.iter().filter(|node| node.id == id).for_each(|node| node.set_disk(state));
                match state {
                    DiskState::Healthy => {}
                    DiskState::Slow(_) => self.recorder.count("slow disks"),
                    DiskState::Full => self.recorder.count("full disks"),
                }
            }
        }
        Ok(())
    }

    /// Times the cut so that the expiry of a session is in the leader's log, but not committed. Waits for a session that will lapse.
    fn lose_majority_before_lapse(&mut self) {
        let Some((duration, back_off)) = self.awaits_lapse else { return };
        let next_lapse = self.work.next_lapse.lock().unwrap_or_else(PoisonError::into_inner).take();
        let before = self.random.between_ms(80, 220);
        let begins = next_lapse.map(|at| at.saturating_sub(before)).filter(|at| *at > self.now);
        if let Some(begins) = begins {
            self.awaits_lapse = None;
            self.plan(begins, Fault::LoseMajority(duration, back_off));
        }
    }

    fn lose_majority(&mut self, duration: Duration, back_off: Duration) {
        let Some(leader) = self.nodes.iter().find(|node| node.leads()).map(|node| node.id) else { return };
        let mut others: Vec<MachineId> = self
            .nodes
            .iter()
            .filter(|node| node.id != leader && node.machine.is_some())
            .map(|n| n.id)
            .collect();
        let paused_until = self.now + duration + 2 * back_off;
        if others.len() > 1 {
            let stopped = others.swap_remove(self.random.below(others.len() as u64) as usize);
            let node = self.nodes.iter_mut().filter(|node| node.id == stopped);
            node.filter_map(|node| node.machine.as_mut())
                .for_each(|machine| machine.pause_until(paused_until));
        }
        for other in others {
            self.network.cut(leader, other);
            self.network.cut(other, leader);
            let heals = self.now + duration;
            self.plan(heals, Fault::HealForNew(leader, other, back_off));
            // A slow disk keeps the leader's earlier entries uncommitted for a while after the follower answers again.
            let sync = self.random.between_ms(100, 400);
            self.plan(heals, Fault::Disk(other, DiskState::Slow(sync)));
            self.plan(heals + SLOW_AFTER_HEAL, Fault::Disk(other, DiskState::Healthy));
        }
        self.recorder.count("majorities lost");
    }

    /// Makes the leader transfer its leadership to a random node, which may be paused or cut off from it.
    fn transfer(&mut self, obstacle: Obstacle, lasts: Duration) {
        let Some(leader) = self.nodes.iter().find(|node| node.leads()).map(|node| node.id) else { return };
        let others: Vec<MachineId> = NODES.into_iter().filter(|id| *id != leader).collect();
        let target = *self.random.one_of(&others);
        self.nodes[leader as usize - 1].request(AdminAction::Transfer(target));
        // The leader finishes its requests in flight first.
        let begins = self.now + self.random.between_ms(0, 150);
        if !lasts.is_zero() {
            match obstacle {
                Obstacle::Paused => self.plan(begins, Fault::Stop(target, lasts)),
                Obstacle::CutOff => {
                    self.plan(begins, Fault::Cut(leader, target));
                    self.plan(begins, Fault::Cut(target, leader));
                    self.plan(begins + lasts, Fault::Heal(leader, target));
                }
            }
        }
        self.recorder.count("leadership transfers");
    }

    /// Schedules a follow-up fault.
    fn plan(&mut self, at: Duration, fault: Fault) {
        let place = self.faults.partition_point(|(planned, _)| *planned <= at);
        self.faults.insert(place, (at, fault));
    }

    fn split(&mut self, leader_side: u64, duration: Duration) {
        let leader = self.nodes.iter().find(|node| node.leads()).map_or(NODES[0], |node| node.id);
        let nodes = self.nodes.iter().map(|node| (node.id, node.id == leader));
        let clients = self.clients.iter().enumerate();
        let clients = clients.map(|(place, client)| (client.id, leader_side >> place & 1 == 1));
        let (here, there): (Vec<_>, Vec<_>) = nodes.chain(clients).partition(|(_, leader_side)| *leader_side);
        let heal_at = self.now + duration;
        for (one, _) in &here {
            for (other, _) in &there {
                self.network.cut(*one, *other);
                self.network.cut(*other, *one);
                self.plan(heal_at, Fault::Heal(*one, *other));
            }
        }
        self.recorder.count("splits");
    }

    fn replace(&mut self, id: MachineId) -> io::Result<()> {
        let Some(place) = self.clients.iter().position(|client| client.id == id) else { return Ok(()) };
        let sends_resets = self.random.once_in(2);
        self.network.lose(id, sends_resets);
        self.clients[place].machine.kill();
        let Client { kind, rate, workers, .. } = self.clients[place];
        self.clients[place].machine = self.new_client(id, kind, rate, workers)?;
        self.recorder.count("clients killed");
        Ok(())
    }

    /// Runs the faults, heals them, and reads the final state.
    fn run_to_end(&mut self) -> io::Result<()> {
        while self.now < self.options.duration {
            self.step()?;
        }
        self.faults.clear();
        let machines: Vec<MachineId> =
            (1..=4).chain(self.clients.iter().map(|client| client.id)).chain([LAST]).collect();
        faults::heal_all(&self.network, &machines);
        self.nodes.iter().for_each(|node| node.set_disk(DiskState::Healthy));
        self.recorder.record_event(self.now, "all faults are healed");
        for id in NODES {
            self.start(id)?;
        }
        let ends = self.now + RECOVERY_MAX;
        while self.work.busy.load(Ordering::Relaxed) > 0 && self.now < ends {
            self.step()?;
        }
        if self.work.busy.load(Ordering::Relaxed) > 0 {
            self.recorder.record_failure(
                self.now,
                "clients are still active a minute after all faults were healed".to_owned(),
            );
        }
        let done = Arc::new(AtomicBool::new(false));
        let machine = Machine::new(LAST, &self.network, self.random.fork(), 1.0, self.now)?;
        let (url, recorder) = (self.work.url.clone(), self.recorder.clone());
        let ends = self.now + RECOVERY_MAX;
        machine.spawn(read_final_state(url, recorder, ends - FINAL_READS_MAX, done.clone()));
        self.clients.push(Client { id: LAST, kind: ClientKind::Library, machine, rate: 1.0, workers: 0 });
        while !done.load(Ordering::Relaxed) && self.now < ends {
            self.step()?;
        }
        self.is_final_state_read = done.load(Ordering::Relaxed);
        if !self.is_final_state_read {
            self.recorder.record_failure(
                self.now,
                "the cell does not answer a minute after all faults were healed".to_owned(),
            );
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Outcome {
        // Taken first: events caused by dropping the machines do not count.
        let Recorded { history, counts, failures, hash, lines } = self.recorder.take();
        let mut violations: Vec<(&'static str, String)> =
            failures.into_iter().map(|failure| ("alive", failure)).collect();
        for (name, check) in checkers::ALL {
            // Properties that depend on clocks do not hold beyond the assumed drift.
            if !self.clocks_within_drift && ["one_holder", "leases_kept"].contains(&name) {
                continue;
            }
            // The final state is unknown.
            if !self.is_final_state_read && name == "no_lost_write" {
                continue;
            }
            violations.extend(check(&history).into_iter().map(|violation| (name, violation)));
        }
        let History { grants, .. } = history;
        let (seed, setup) = (self.options.seed, self.setup.clone());
        Outcome { seed, violations, hash, setup, trace: lines, counts, grants: grants.len() }
    }
}

/// Waits until no holder or waiter is left, and reads all values.
async fn read_final_state(url: String, recorder: Recorder, ends: Duration, done: Arc<AtomicBool>) {
    let keeper = loop {
        match Keeper::connect(&url).await {
            Ok(keeper) => break keeper,
            Err(_) => recorder.count("connects failed"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    };
    loop {
        let mut left = Vec::new();
        let mut answers = 0;
        for lock in LOCKS {
            let Ok(state) = keeper.who(lock).await else { continue };
            answers += 1;
            let holders = state
                .holders
                .into_iter()
                .map(|holder| (format!("{} ({})", holder.owner, holder.value), false));
            let queue =
                state.queue.into_iter().map(|waiter| (format!("{} ({})", waiter.owner, waiter.value), true));
            left.extend(holders.chain(queue).map(|(owner, waits)| Leftover {
                lock: lock.to_owned(),
                owner,
                waits,
            }));
        }
        if answers == LOCKS.len() && (left.is_empty() || true_now() >= ends) {
            recorder.update(|history| history.left = left);
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for key in LOCKS {
        let invoked = true_now();
        let value = loop {
            match keeper.value(key).get().await {
                Ok(value) => break value,
                Err(error) => recorder.count(&format!("last reads {}", error.code())),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        };
        let (value, version) = value
            .map(|value| (String::from_utf8_lossy(&value.bytes).into_owned(), value.version))
            .unwrap_or_default();
        let returned = true_now();
        recorder.record_event(returned, &format!("{key} has version {version} at the end"));
        let read = Read { key: key.to_owned(), value, version, invoked, returned };
        recorder.update(|history| history.reads.push(read));
    }
    done.store(true, Ordering::Relaxed);
}

/// A folder in memory if possible, because identities and snapshots are written and synced often.
fn memory_folder() -> io::Result<TempDir> {
    let memory = std::path::Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::Builder::new().prefix("lockkeeper-").tempdir_in(memory),
        false => tempfile::Builder::new().prefix("lockkeeper-").tempdir(),
    }
}
