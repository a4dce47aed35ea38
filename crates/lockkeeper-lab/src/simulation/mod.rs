//! A whole cell and its clients in one thread: the real code of the node and of the library, on machines, disks, clocks
//! and a network that are made up, and that a seed decides to the last bit.
//!
//! Time goes by in small steps. In each step what is due on the network arrives, what is planned to go wrong does, and
//! every machine lives on by its own clock, one after the other. Nothing else happens, so a seed can be repeated.
//!
//! turmoil has all of this but two things: clocks that run at different speeds, and processes that stand still. They
//! are what leases are about, so the machines are our own (docs/adr/0013-simulation.md).

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

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lockkeeper::Keeper;
use lockkeeper_core::mutation;
pub use lockkeeper_core::mutation::Mutation;
use tempfile::TempDir;

use self::client::{AGAIN, LOCKS, Work};
use self::distance::Distance;
use self::faults::{DiskState, Emphasis, Fault, Kinds};
use self::machine::{Machine, true_now};
use self::network::{MachineId, Network, Quality, address_of};
use self::node::{Digests, End, Node, Order};
use self::random::Random;
use self::recorder::{Recorded, Recorder};
use crate::checkers::history::{Left, Read};
use crate::checkers::{self, History};

const NODES: [MachineId; 3] = [1, 2, 3];
/// Machines from here on are clients.
const CLIENTS_FROM: MachineId = 11;
/// One that comes when all is over.
const LAST: MachineId = 99;
/// When everything is whole again, the cell must be empty and answer within this time.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);

/// Before that, somebody must have looked at all that is there.
const LOOKS_WITHIN: Duration = Duration::from_secs(10);

/// How a run is made.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Decides everything.
    pub seed: u64,
    /// For how long things go wrong.
    pub lasts: Duration,
    /// Whether everything that happens is kept as text.
    pub tells: bool,
    /// A bug that is put back for this run.
    pub mutation: Option<Mutation>,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was broken: the name of the checker and the words.
    pub violations: Vec<(&'static str, String)>,
    /// A hash over everything in its order.
    pub hash: u64,
    /// What the seed had chosen.
    pub chosen: String,
    /// Everything in its order, if it was asked for.
    pub told: Vec<String>,
    /// How often what happened.
    pub counts: BTreeMap<String, u64>,
    /// How many grants there were.
    pub grants: usize,
}

/// Runs a seed.
pub fn run(setting: Setting) -> io::Result<Outcome> {
    machine::watch_for_panics();
    mutation::put_back(setting.mutation);
    let outcome = World::new(setting).and_then(|mut world| {
        world.go_through()?;
        Ok(world.judge())
    });
    mutation::put_back(None);
    outcome
}

struct World {
    setting: Setting,
    random: Random,
    now: Duration,
    step: Duration,
    network: Network,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    faults: VecDeque<(Duration, Fault)>,
    recorder: Recorder,
    work: Work,
    clocks_are_good: bool,
    distance: Distance,
    /// Decides the timing of each life of a node.
    timings: Random,
    /// Somebody could look at what was left.
    was_looked_at: bool,
    chosen: String,
    _folder: TempDir,
}

struct Client {
    id: MachineId,
    kind: ClientKind,
    machine: Machine,
    rate: f64,
    workers: u32,
}

/// How a client speaks with the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientKind {
    /// The library.
    Library,
    /// The frames, without the library's care.
    Plain,
}

impl World {
    fn new(setting: Setting) -> io::Result<World> {
        let mut random = Random::new(setting.seed);
        let recorder = Recorder::default();
        if setting.tells {
            recorder.keep_trace();
        }
        let quality = Quality {
            delay_min_ms: 0,
            delay_max_ms: *random.one_of(&[1, 5, 20]),
            lost_once_in: *random.one_of(&[0, 0, 200, 50]),
        };
        let distance = Distance::at_random(setting.seed);
        let network = Network::new(random.fork(), quality);
        network.set_distance(distance.one_way());
        let kinds = Kinds::at_random(&mut random);
        // Clocks differ by up to half a percent from the true time, so by up to one from each other, as promised.
        // In some runs they do not keep to it: then tokens alone protect, and must.
        let clocks_are_good = !random.once_in(8);
        let off_by = if clocks_are_good { 0.004_9 } else { 0.08 };
        let rate = |random: &mut Random| 1.0 + off_by * (random.below(2_001) as f64 / 1_000.0 - 1.0);
        let plain = CLIENTS_FROM + 3 + random.below(3) as u32;
        let clients: Vec<MachineId> = (CLIENTS_FROM..=plain).collect();
        let ttl = Duration::from_millis(*random.one_of(&[800, 2_000, 4_000]));
        let mut plan = faults::plan(&mut random, kinds, &NODES, &clients, setting.lasts);
        let emphasis = Emphasis::at_random(setting.seed);
        plan.extend(emphasis.faults(setting.seed, &NODES, &clients, setting.lasts));
        plan.extend(distance.faults(setting.seed, clients.len()));
        plan.sort_by_key(|(at, _)| *at);
        let step = Duration::from_millis(*random.one_of(&[1, 2, 5]));
        let snapshot_every = *random.one_of(&[40, 200, 100_000]);
        // A damaged table must not be handed on before it is noticed.
        let snapshot_every = if kinds.damage { 100_000 } else { snapshot_every };
        let chosen = format!(
            "{kinds:?}, {emphasis:?}, {quality:?}, {distance:?}, time to live {ttl:?}, {} clients, a snapshot every {snapshot_every} commands, \
             clocks {}",
            clients.len(),
            if clocks_are_good { "as promised" } else { "beyond what is promised" }
        );

        let folder = memory_folder()?;
        let digests = Digests::default();
        let nodes = (1..=4)
            .map(|id| {
                let path = folder.path().join(format!("node-{id}"));
                Node::new(id, path, rate(&mut random), snapshot_every, &digests)
            })
            .collect();
        let addresses: Vec<String> = (1..=4).map(address_of).collect();
        let work = Work {
            url: format!("lockkeeper://{}", addresses[..if kinds.members { 4 } else { 3 }].join(",")),
            ttl,
            recorder: recorder.clone(),
            until: setting.lasts,
            busy: Arc::default(),
            requests: Arc::default(),
            lapses: Arc::default(),
        };
        let mut world = World {
            setting,
            now: Duration::ZERO,
            step,
            network,
            nodes,
            clients: Vec::new(),
            faults: plan.into(),
            recorder,
            work,
            clocks_are_good,
            distance,
            timings: Random::new(setting.seed ^ 0x0074_696d_696e_6773),
            was_looked_at: false,
            chosen,
            _folder: folder,
            random: random.fork(),
        };
        for id in NODES {
            world.start(id)?;
        }
        for id in clients {
            let rate = rate(&mut random);
            let workers = 1 + random.below(2) as u32;
            let kind = if id == plain { ClientKind::Plain } else { ClientKind::Library };
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
        node.start(&self.network, members, timing, random, &self.recorder, self.now)
    }

    /// One step of time.
    fn step(&mut self) -> io::Result<()> {
        self.now += self.step;
        self.network.advance(self.now);
        while self.faults.front().is_some_and(|(at, _)| *at <= self.now) {
            if let Some((_, fault)) = self.faults.pop_front() {
                self.bring_about(fault)?;
            }
        }
        let mut machines: Vec<&mut Machine> =
            self.nodes.iter_mut().filter_map(|node| node.machine.as_mut()).collect();
        machines.extend(self.clients.iter_mut().map(|client| &mut client.machine));
        // Nobody is always the first.
        let first = self.random.below(machines.len() as u64) as usize;
        machines.rotate_left(first);
        for machine in machines {
            machine.live(self.now);
        }
        for panic in machine::panics() {
            self.recorder.trouble(self.now, panic);
        }
        Ok(())
    }

    fn bring_about(&mut self, fault: Fault) -> io::Result<()> {
        self.recorder.tell(self.now, &format!("{fault:?}"));
        match fault {
            Fault::Kill(id, end) => {
                self.nodes[id as usize - 1].kill(end, &self.network, &mut self.random);
                self.recorder.count(match end {
                    End::Killed => "nodes killed",
                    End::PowerCut => "power cuts",
                });
            }
            Fault::Start(id) => self.start(id)?,
            Fault::Stop(id, time) => {
                let until = self.now + time;
                let node =
                    self.nodes.iter_mut().filter(|node| node.id == id).filter_map(|n| n.machine.as_mut());
                let client = self.clients.iter_mut().filter(|client| client.id == id).map(|c| &mut c.machine);
                node.chain(client).for_each(|machine| machine.stop_until(until));
                self.recorder.count("stops");
            }
            Fault::Cut(from, to) => {
                self.network.cut(from, to);
                self.recorder.count("cuts");
            }
            Fault::Split(with_leader, lasts) => self.split(with_leader, lasts),
            Fault::Slow(from, to, delay) => self.network.slow(from, to, delay),
            Fault::Heal(one, other) => self.network.heal(one, other),
            Fault::Reset(one, other) => self.network.reset(one, other),
            Fault::Disturb(one, other, how) => {
                self.network.disturb_one(one, other, how);
                self.recorder.count("single streams disturbed");
            }
            Fault::LoseMajority(lasts, back_off) => self.lose_majority(lasts, back_off),
            Fault::HealForNew(one, other, back_off) => self.network.heal_for_new(one, other, back_off),
            Fault::SetClock(id, by_ms) => {
                let client = self.clients.iter().filter(|client| client.id == id);
                client.for_each(|client| client.machine.set_clock(by_ms));
            }
            Fault::Replace(id) => self.replace(id)?,
            Fault::Change(order) => self.nodes.iter().for_each(|node| node.order(order)),
            Fault::Damage(id) => self.nodes[id as usize - 1].order(Order::Damage),
            Fault::Disk(id, state) => {
                self.nodes.iter().filter(|node| node.id == id).for_each(|node| node.set_disk(state));
                match state {
                    DiskState::Whole => {}
                    DiskState::Slow(_) => self.recorder.count("slow disks"),
                    DiskState::Full => self.recorder.count("full disks"),
                }
            }
        }
        Ok(())
    }

    /// If a session is about to lapse, its expiry is in the log when the way is cut, and not committed.
    fn lose_majority(&mut self, lasts: Duration, back_off: Duration) {
        let lapses = self.work.lapses.lock().unwrap_or_else(PoisonError::into_inner).take();
        let before = self.random.between_ms(80, 220);
        if let Some(begins) = lapses.map(|at| at.saturating_sub(before)).filter(|at| *at > self.now) {
            return self.plan(begins, Fault::LoseMajority(lasts, back_off));
        }
        let Some(leader) = self.nodes.iter().find(|node| node.leads()).map(|node| node.id) else { return };
        let mut others: Vec<MachineId> = self
            .nodes
            .iter()
            .filter(|node| node.id != leader && node.machine.is_some())
            .map(|n| n.id)
            .collect();
        let stands_still = self.now + lasts + 2 * back_off;
        if others.len() > 1 {
            let stopped = others.swap_remove(self.random.below(others.len() as u64) as usize);
            let node = self.nodes.iter_mut().filter(|node| node.id == stopped);
            node.filter_map(|node| node.machine.as_mut())
                .for_each(|machine| machine.stop_until(stands_still));
        }
        for other in others {
            self.network.cut(leader, other);
            self.network.cut(other, leader);
            self.plan(self.now + lasts, Fault::HealForNew(leader, other, back_off));
        }
        self.recorder.count("majorities lost");
    }

    /// Adds a fault that follows from one that has just happened.
    fn plan(&mut self, at: Duration, fault: Fault) {
        let place = self.faults.partition_point(|(planned, _)| *planned <= at);
        self.faults.insert(place, (at, fault));
    }

    fn split(&mut self, with_leader: u64, lasts: Duration) {
        let leader = self.nodes.iter().find(|node| node.leads()).map_or(NODES[0], |node| node.id);
        let nodes = self.nodes.iter().map(|node| (node.id, node.id == leader));
        let clients = self.clients.iter().enumerate();
        let clients = clients.map(|(place, client)| (client.id, with_leader >> place & 1 == 1));
        let (here, there): (Vec<_>, Vec<_>) = nodes.chain(clients).partition(|(_, with_leader)| *with_leader);
        let heals = self.now + lasts;
        for (one, _) in &here {
            for (other, _) in &there {
                self.network.cut(*one, *other);
                self.network.cut(*other, *one);
                self.plan(heals, Fault::Heal(*one, *other));
            }
        }
        self.recorder.count("splits");
    }

    fn replace(&mut self, id: MachineId) -> io::Result<()> {
        let Some(place) = self.clients.iter().position(|client| client.id == id) else { return Ok(()) };
        let says_so = self.random.once_in(2);
        self.network.lose(id, says_so);
        self.clients[place].machine.kill();
        let Client { kind, rate, workers, .. } = self.clients[place];
        self.clients[place].machine = self.new_client(id, kind, rate, workers)?;
        self.recorder.count("clients killed");
        Ok(())
    }

    /// Everything goes wrong; then everything is whole again; then somebody looks at what is left.
    fn go_through(&mut self) -> io::Result<()> {
        while self.now < self.setting.lasts {
            self.step()?;
        }
        self.faults.clear();
        let everybody: Vec<MachineId> =
            (1..=4).chain(self.clients.iter().map(|client| client.id)).chain([LAST]).collect();
        faults::heal_all(&self.network, &everybody);
        self.nodes.iter().for_each(|node| node.set_disk(DiskState::Whole));
        self.recorder.tell(self.now, "everything is whole again");
        for id in NODES {
            self.start(id)?;
        }
        let ends = self.now + RECOVERS_WITHIN;
        while self.work.busy.load(Ordering::Relaxed) > 0 && self.now < ends {
            self.step()?;
        }
        if self.work.busy.load(Ordering::Relaxed) > 0 {
            self.recorder.trouble(
                self.now,
                "clients are still at work a minute after everything was whole again".to_owned(),
            );
        }
        let done = Arc::new(AtomicBool::new(false));
        let machine = Machine::new(LAST, &self.network, self.random.fork(), 1.0, self.now)?;
        let (url, recorder) = (self.work.url.clone(), self.recorder.clone());
        let ends = self.now + RECOVERS_WITHIN;
        machine.spawn(look_at_the_end(url, recorder, ends - LOOKS_WITHIN, done.clone()));
        self.clients.push(Client { id: LAST, kind: ClientKind::Library, machine, rate: 1.0, workers: 0 });
        while !done.load(Ordering::Relaxed) && self.now < ends {
            self.step()?;
        }
        self.was_looked_at = done.load(Ordering::Relaxed);
        if !self.was_looked_at {
            self.recorder.trouble(
                self.now,
                "the cell does not answer a minute after everything was whole again".to_owned(),
            );
        }
        Ok(())
    }

    fn judge(&mut self) -> Outcome {
        // Whatever is dropped now must not be taken for something that happened.
        let Recorded { history, counts, troubles, hash, told } = self.recorder.take();
        let mut violations: Vec<(&'static str, String)> =
            troubles.into_iter().map(|trouble| ("alive", trouble)).collect();
        for (name, check) in checkers::ALL {
            // What depends on clocks is not promised if they do not keep to what they promise.
            if !self.clocks_are_good && ["one_holder", "leases_kept"].contains(&name) {
                continue;
            }
            // Nothing can be said about what is there at the end.
            if !self.was_looked_at && name == "no_lost_write" {
                continue;
            }
            violations.extend(check(&history).into_iter().map(|violation| (name, violation)));
        }
        let History { grants, .. } = history;
        let (seed, chosen) = (self.setting.seed, self.chosen.clone());
        Outcome { seed, violations, hash, chosen, told, counts, grants: grants.len() }
    }
}

/// Waits until nobody holds or waits any more, and reads all values.
async fn look_at_the_end(url: String, recorder: Recorder, ends: Duration, done: Arc<AtomicBool>) {
    let keeper = loop {
        match Keeper::connect(&url).await {
            Ok(keeper) => break keeper,
            Err(_) => recorder.count("connects failed"),
        }
        tokio::time::sleep(AGAIN).await;
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
            left.extend(holders.chain(queue).map(|(owner, waits)| Left {
                lock: lock.to_owned(),
                owner,
                waits,
            }));
        }
        if answers == LOCKS.len() && (left.is_empty() || true_now() >= ends) {
            recorder.note(|history| history.left = left);
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for key in LOCKS {
        let asked = true_now();
        let value = loop {
            match keeper.value(key).get().await {
                Ok(value) => break value,
                Err(error) => recorder.count(&format!("last reads {}", error.code())),
            }
            tokio::time::sleep(AGAIN).await;
        };
        let (value, version) = value
            .map(|value| (String::from_utf8_lossy(&value.bytes).into_owned(), value.version))
            .unwrap_or_default();
        let answered = true_now();
        recorder.tell(answered, &format!("{key} has version {version} at the end"));
        let read = Read { key: key.to_owned(), value, version, asked, answered };
        recorder.note(|history| history.reads.push(read));
    }
    done.store(true, Ordering::Relaxed);
}

/// In memory if the system has such a place: identities and snapshots are written and synced often.
fn memory_folder() -> io::Result<TempDir> {
    let memory = std::path::Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::Builder::new().prefix("lockkeeper-").tempdir_in(memory),
        false => tempfile::Builder::new().prefix("lockkeeper-").tempdir(),
    }
}
