//! What goes wrong in a run, and when. All of it follows from the seed.

use std::time::Duration;

use super::network::{Disturbance, MachineId, Network};
use super::node::{End, Order};
use super::random::Random;

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// A node's process or machine is gone.
    Kill(MachineId, End),
    /// And comes back.
    Start(MachineId),
    /// A machine stands still for so long.
    Stop(MachineId, Duration),
    /// The way from one to another is cut.
    Cut(MachineId, MachineId),
    /// The way from one to another is slow.
    Slow(MachineId, MachineId, Duration),
    /// Both ways between two are whole again.
    Heal(MachineId, MachineId),
    /// The network falls apart for so long: the leader and the clients whose bits are set here, everybody else there.
    /// Its clients hear of nobody else, and those on the other side soon have another leader.
    Split(u64, Duration),
    /// All streams between two are broken off.
    Reset(MachineId, MachineId),
    /// Something happens to a single stream between two.
    Disturb(MachineId, MachineId, Disturbance),
    /// The leader loses its majority for so long: one other node stands still, the way to the rest is cut and healed
    /// for new streams, while the old ones are in their retransmission back-off for the second time.
    LoseMajority(Duration, Duration),
    /// Both ways between two are whole again for new streams; the old ones stay as they are for so long.
    HealForNew(MachineId, MachineId, Duration),
    /// People set a machine's clock by so many milliseconds.
    SetClock(MachineId, i64),
    /// A client's process is gone, and another one takes its place.
    Replace(MachineId),
    /// The members of the cell are changed.
    Change(Order),
    /// The lock table of a node becomes different from those of the others.
    Damage(MachineId),
    /// A node's disk becomes slow or full, or whole again.
    Disk(MachineId, DiskState),
}

/// What is wrong with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskState {
    Whole,
    /// Each sync takes so long.
    Slow(Duration),
    /// No segment can be made.
    Full,
}

/// How much goes wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kinds {
    pub(super) kills: bool,
    pub(super) power: bool,
    pub(super) stops: bool,
    pub(super) cuts: bool,
    pub(super) clients: bool,
    pub(super) members: bool,
    pub(super) damage: bool,
    pub(super) disks: bool,
}

impl Kinds {
    /// Most runs have a few kinds only, so that each gets its time.
    pub(super) fn at_random(random: &mut Random) -> Kinds {
        let all = random.once_in(4);
        let mut some = || all || random.once_in(2);
        let mut kinds = Kinds {
            kills: some(),
            power: some(),
            stops: some(),
            cuts: some(),
            clients: some(),
            members: !all && random.once_in(4),
            damage: false,
            disks: for_disks(random).once_in(3),
        };
        kinds.damage = !kinds.members && random.once_in(6);
        kinds
    }
}

/// A rare fault that some runs have several times. Chosen by a source of its own: the rest of a seed stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emphasis {
    Nothing,
    /// The leader loses its majority and gets it back in the same term.
    LostMajorities,
    /// Clients far away from a slow cell.
    Lag,
}

impl Emphasis {
    pub(super) fn at_random(seed: u64) -> Emphasis {
        match Random::new(seed ^ 0x656d_7068).below(5) {
            0 => Emphasis::LostMajorities,
            1 => Emphasis::Lag,
            _ => Emphasis::Nothing,
        }
    }

    pub(super) fn faults(
        self,
        seed: u64,
        nodes: &[MachineId],
        clients: &[MachineId],
        until: Duration,
    ) -> Vec<(Duration, Fault)> {
        let mut random = Random::new(seed ^ 0x6661_756c_7473);
        let mut faults = Vec::new();
        let mut now = random.between_ms(1_000, 3_000);
        while now < until {
            match self {
                Emphasis::Nothing => break,
                Emphasis::LostMajorities => faults.push((now, lost_majority(&mut random))),
                Emphasis::Lag => lag(&mut random, nodes, clients, now, &mut faults),
            }
            now += random.between_ms(2_500, 5_000);
        }
        faults
    }
}

fn lost_majority(random: &mut Random) -> Fault {
    Fault::LoseMajority(random.between_ms(900, 2_200), random.between_ms(300, 3_000))
}

/// The faults of a run.
pub(super) fn plan(
    random: &mut Random,
    kinds: Kinds,
    nodes: &[MachineId],
    clients: &[MachineId],
    until: Duration,
) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    let mut now = random.between_ms(500, 3_000);
    while now < until {
        let node = *random.one_of(nodes);
        let client = *random.one_of(clients);
        match random.below(8) {
            0 | 1 if kinds.kills || kinds.power => {
                let end = match (kinds.power, kinds.kills) {
                    (true, true) if random.once_in(2) => End::PowerCut,
                    (true, false) => End::PowerCut,
                    _ => End::Killed,
                };
                faults.push((now, Fault::Kill(node, end)));
                faults.push((now + random.between_ms(50, 4_000), Fault::Start(node)));
                // Sometimes all of them, one shortly after the other.
                if random.once_in(6) {
                    for other in nodes.iter().filter(|other| **other != node) {
                        let at = now + random.between_ms(0, 40);
                        faults.push((at, Fault::Kill(*other, end)));
                        faults.push((at + random.between_ms(100, 2_000), Fault::Start(*other)));
                    }
                }
            }
            2 if kinds.stops => faults.push((now, Fault::Stop(node, random.between_ms(50, 5_000)))),
            3 if kinds.clients => faults.push((now, Fault::Stop(client, random.between_ms(50, 6_000)))),
            4 if kinds.clients && random.once_in(2) => faults.push((now, Fault::Replace(client))),
            4 if kinds.clients => {
                faults.push((now, Fault::SetClock(client, random.below(20_000) as i64 - 10_000)));
            }
            5 | 6 if kinds.cuts => cut(random, nodes, clients, now, &mut faults),
            7 if kinds.cuts => {
                let other = *random.one_of(nodes);
                faults.push((now, Fault::Reset(node, if random.once_in(2) { client } else { other })));
            }
            _ => {}
        }
        now += random.between_ms(100, 2_500);
    }
    if kinds.members {
        let fourth = nodes.len() as MachineId + 1;
        let begins = random.between_ms(2_000, 6_000);
        faults.push((begins, Fault::Start(fourth)));
        // Asked again and again: only a leader that has its majority can do it.
        for round in 0..6 {
            let at = begins + Duration::from_millis(500 + 1_000 * round);
            faults.push((at, Fault::Change(Order::Add(fourth))));
        }
        let leaves = *random.one_of(nodes);
        for round in 0..6 {
            let at = begins + Duration::from_millis(7_000 + 1_000 * round);
            faults.push((at, Fault::Change(Order::Remove(leaves))));
        }
    }
    if kinds.damage {
        faults.push((random.between_ms(2_000, 8_000), Fault::Damage(*random.one_of(nodes))));
    }
    if kinds.disks {
        disks(&mut for_disks(random), nodes, until, &mut faults);
    }
    faults
}

/// A source of its own, so that a run without these faults is the same as ever.
fn for_disks(random: &Random) -> Random {
    Random::new(random.clone().next() ^ 0xd15c)
}

/// Disks become slow or full for a while, one or several at the same time.
fn disks(random: &mut Random, nodes: &[MachineId], until: Duration, faults: &mut Vec<(Duration, Fault)>) {
    let mut now = random.between_ms(500, 3_000);
    while now < until {
        let node = *random.one_of(nodes);
        let state = match random.once_in(2) {
            true => DiskState::Full,
            false => DiskState::Slow(random.between_ms(2, 120)),
        };
        faults.push((now, Fault::Disk(node, state)));
        faults.push((now + random.between_ms(200, 5_000), Fault::Disk(node, DiskState::Whole)));
        now += random.between_ms(100, 3_000);
    }
}

fn cut(
    random: &mut Random,
    nodes: &[MachineId],
    clients: &[MachineId],
    now: Duration,
    faults: &mut Vec<(Duration, Fault)>,
) {
    let node = *random.one_of(nodes);
    let heals = now + random.between_ms(100, 5_000);
    if random.once_in(3) {
        let lasts = random.between_ms(1_000, 8_000);
        return faults.push((now, Fault::Split(random.below(1 << clients.len()), lasts)));
    }
    if random.once_in(4) {
        return lag(random, nodes, clients, now, faults);
    }
    if random.once_in(4) {
        return faults.push((now, lost_majority(random)));
    }
    if random.once_in(4) {
        return disturb(random, nodes, clients, now, faults);
    }
    // From everybody, from the other nodes, or from one machine.
    let others: Vec<MachineId> = match random.below(4) {
        0 => nodes.iter().chain(clients).copied().filter(|other| *other != node).collect(),
        1 => nodes.iter().copied().filter(|other| *other != node).collect(),
        2 => vec![*random.one_of(clients)],
        _ => nodes.iter().copied().filter(|other| *other != node).take(1).collect(),
    };
    let direction = random.below(4);
    for other in others {
        match direction {
            0 => faults.push((now, Fault::Cut(node, other))),
            1 => faults.push((now, Fault::Cut(other, node))),
            2 => {
                faults.push((now, Fault::Slow(node, other, random.between_ms(20, 600))));
                faults.push((now, Fault::Slow(other, node, random.between_ms(20, 600))));
            }
            _ => {
                faults.push((now, Fault::Cut(node, other)));
                faults.push((now, Fault::Cut(other, node)));
            }
        }
        faults.push((heals, Fault::Heal(node, other)));
    }
}

/// Single streams suffer for a while, between nodes or to clients; new ones are fine.
fn disturb(
    random: &mut Random,
    nodes: &[MachineId],
    clients: &[MachineId],
    now: Duration,
    faults: &mut Vec<(Duration, Fault)>,
) {
    for _ in 0..1 + random.below(4) {
        let one = *random.one_of(nodes);
        let other = if random.once_in(3) { *random.one_of(clients) } else { *random.one_of(nodes) };
        let how = match random.below(3) {
            0 => Disturbance::Freeze(random.between_ms(100, 4_000)),
            1 => Disturbance::Slow(random.between_ms(20, 600)),
            _ => Disturbance::Break,
        };
        faults.push((now + random.between_ms(0, 300), Fault::Disturb(one, other, how)));
    }
}

/// A client far away, and a cell whose entries take their time: its renewals arrive about when its time is over, and meet
/// the expiry that is on its way.
fn lag(
    random: &mut Random,
    nodes: &[MachineId],
    clients: &[MachineId],
    now: Duration,
    faults: &mut Vec<(Duration, Fault)>,
) {
    let client = *random.one_of(clients);
    let heals = now + random.between_ms(2_000, 8_000);
    let far = random.between_ms(400, 640);
    let between = random.between_ms(10, 35);
    for (place, node) in nodes.iter().enumerate() {
        faults.push((now, Fault::Slow(client, *node, far)));
        faults.push((heals, Fault::Heal(client, *node)));
        for other in &nodes[place + 1..] {
            faults.push((now, Fault::Slow(*node, *other, between)));
            faults.push((now, Fault::Slow(*other, *node, between)));
            faults.push((heals, Fault::Heal(*node, *other)));
        }
    }
}

/// Heals everything.
pub(super) fn heal_all(network: &Network, machines: &[MachineId]) {
    for (place, one) in machines.iter().enumerate() {
        for other in &machines[place + 1..] {
            network.heal(*one, *other);
        }
    }
}
