//! The faults of a run and their times, derived from the seed.

use std::time::Duration;

use super::network::{Disturbance, MachineId, Network};
use super::node::{AdminAction, End};
use super::random::Random;

/// A fault at a point in time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// A node's process is killed, or its machine loses power.
    Kill(MachineId, End),
    /// The leader's process is killed, and started again after this duration.
    KillLeader(Duration),
    /// A node is started.
    Start(MachineId),
    /// A machine is paused for this duration.
    Stop(MachineId, Duration),
    /// The link from one machine to another is cut.
    Cut(MachineId, MachineId),
    /// The link from one machine to another is slow.
    Slow(MachineId, MachineId, Duration),
    /// Both directions between two machines are healed.
    Heal(MachineId, MachineId),
    /// The network is partitioned for this duration: the leader and the clients whose bits are set on one side, all others on
    /// the other side, where a new leader is soon elected.
    Split(u64, Duration),
    /// All streams between two machines are reset.
    Reset(MachineId, MachineId),
    /// A single stream between two machines is disturbed.
    Disturb(MachineId, MachineId, Disturbance),
    /// The leader loses its majority for the first duration: one other node is paused, and the links to the rest are cut. They
    /// are then healed for new streams, while the old ones stay in retransmission backoff for the second duration.
    LoseMajority(Duration, Duration),
    /// The same, shortly before a session lapses.
    LoseMajorityAtLapse(Duration, Duration),
    /// Both directions between two machines are healed for new streams; old ones stay frozen for this duration.
    HealForNew(MachineId, MachineId, Duration),
    /// A machine's wall clock is set by this many milliseconds.
    SetClock(MachineId, i64),
    /// A client's process is killed and replaced.
    Replace(MachineId),
    /// The members of the cell are changed.
    Change(AdminAction),
    /// The leader transfers its leadership to another node, which is paused or cut off from the leader for this duration, or from
    /// nobody if it is zero.
    Transfer(Obstacle, Duration),
    /// The lock table of a node diverges from the others.
    Damage(MachineId),
    /// A node's disk becomes slow, full or healthy.
    Disk(MachineId, DiskState),
}

/// What happens to the target of a leadership transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    Paused,
    CutOff,
}

/// The state of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskState {
    Healthy,
    /// Each sync takes this long.
    Slow(Duration),
    /// No segment can be created.
    Full,
}

/// The kinds of faults in a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct FaultKinds {
    pub(super) kills: bool,
    pub(super) power: bool,
    pub(super) stops: bool,
    pub(super) cuts: bool,
    pub(super) clients: bool,
    pub(super) members: bool,
    pub(super) damage: bool,
    pub(super) disks: bool,
}

impl FaultKinds {
    /// Only the faults of a scenario.
    pub(super) const NONE: FaultKinds = FaultKinds {
        kills: false,
        power: false,
        stops: false,
        cuts: false,
        clients: false,
        members: false,
        damage: false,
        disks: false,
    };

    /// Most runs have only a few kinds, so that each gets enough time.
    pub(super) fn at_random(random: &mut Random) -> FaultKinds {
        let all = random.once_in(4);
        let mut some = || all || random.once_in(2);
        let mut kinds = FaultKinds {
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

/// A rare fault that some runs repeat, or a scenario for one. Uses a separate generator, so that the rest of a seed does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emphasis {
    Nothing,
    /// The leader loses its majority and gets it back in the same term.
    LostMajorities,
    /// The same as a scenario: without other faults, with one client that renews its lapsed session as soon as the leader serves
    /// again, and one that waits for its lock.
    RegainedTerm,
    /// Clients with high latency to a slow cell.
    Lag,
    /// The leader transfers its leadership, often to a node that does not answer.
    Transfers,
    /// A scenario: one client that holds a lock for long, and no other requests, until the leader is killed.
    QuietCell,
    /// A scenario: a holder with high latency is cut off, and another client waits for its lock.
    FarHolder,
}

impl Emphasis {
    pub(super) fn at_random(seed: u64) -> Emphasis {
        match Random::new(seed ^ 0x656d_7068).below(10) {
            0 => Emphasis::LostMajorities,
            5 => Emphasis::RegainedTerm,
            1 | 6 => Emphasis::Lag,
            2 => Emphasis::QuietCell,
            3 => Emphasis::FarHolder,
            4 => Emphasis::Transfers,
            _ => Emphasis::Nothing,
        }
    }

    /// Whether the run has no faults but these.
    pub(super) fn is_scenario(self) -> bool {
        matches!(self, Emphasis::RegainedTerm | Emphasis::QuietCell | Emphasis::FarHolder)
    }

    /// Whether library clients hold a lock for long without other requests.
    pub(super) fn is_quiet(self) -> bool {
        matches!(self, Emphasis::QuietCell | Emphasis::FarHolder)
    }

    /// Whether plain clients let most sessions lapse.
    pub(super) fn has_lapses(self) -> bool {
        matches!(self, Emphasis::LostMajorities | Emphasis::RegainedTerm)
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
                Emphasis::LostMajorities => {
                    let (duration, back_off) = lost_majority(&mut random);
                    faults.push((now, Fault::LoseMajorityAtLapse(duration, back_off)));
                }
                Emphasis::RegainedTerm => {
                    let (_, back_off) = lost_majority(&mut random);
                    let duration = random.between_ms(REGAINED_AFTER_MS.0, REGAINED_AFTER_MS.1);
                    faults.push((now, Fault::LoseMajorityAtLapse(duration, back_off)));
                }
                Emphasis::QuietCell => {
                    let starts = random.between_ms(500, 2_000);
                    faults.push((now, Fault::KillLeader(starts)));
                }
                Emphasis::Transfers => {
                    let obstacle = if random.once_in(2) { Obstacle::Paused } else { Obstacle::CutOff };
                    let lasts = match random.once_in(4) {
                        true => Duration::ZERO,
                        false => random.between_ms(100, 4_000),
                    };
                    faults.push((now, Fault::Transfer(obstacle, lasts)));
                }
                Emphasis::Lag => lag(&mut random, nodes, clients, now, &mut faults),
                Emphasis::FarHolder => {
                    let [.., holder] = clients else { break };
                    cut_far_holder(&mut random, nodes, *holder, now, &mut faults);
                }
            }
            now += random.between_ms(2_500, 5_000);
        }
        faults
    }
}

/// A leader that gets its majority back after this time has stopped serving, and still sends heartbeats, so that it stays the
/// leader of its term.
const REGAINED_AFTER_MS: (u64, u64) = (1_200, 1_900);

/// Duration of a lost majority, and the retransmission back-off of its links.
fn lost_majority(random: &mut Random) -> (Duration, Duration) {
    (random.between_ms(900, 2_200), random.between_ms(300, 3_000))
}

/// Plans the faults of a run.
pub(super) fn plan(
    random: &mut Random,
    kinds: FaultKinds,
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
                // Sometimes all nodes, in short succession.
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
        // Repeated, because only a leader with a majority can do it.
        for round in 0..6 {
            let at = begins + Duration::from_millis(500 + 1_000 * round);
            faults.push((at, Fault::Change(AdminAction::Add(fourth))));
        }
        let leaves = *random.one_of(nodes);
        for round in 0..6 {
            let at = begins + Duration::from_millis(7_000 + 1_000 * round);
            faults.push((at, Fault::Change(AdminAction::Remove(leaves))));
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

/// Sets the quota of plain clients. Repeated, because only a leader can do it.
pub(super) fn set_quota() -> impl Iterator<Item = (Duration, Fault)> {
    (0..6).map(|round| (Duration::from_millis(500 + 1_000 * round), Fault::Change(AdminAction::SetQuota)))
}

/// A separate generator, so that runs without disk faults do not change.
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
        faults.push((now + random.between_ms(200, 5_000), Fault::Disk(node, DiskState::Healthy)));
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
        let (duration, back_off) = lost_majority(random);
        return faults.push((now, Fault::LoseMajority(duration, back_off)));
    }
    if random.once_in(4) {
        return disturb(random, nodes, clients, now, faults);
    }
    // Links to all machines, to the other nodes, or to one machine.
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

/// Disturbs single streams between nodes or to clients; new streams are not affected.
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

/// A client with high latency and a slow cell: its renewals arrive when the session is about to expire, and race with the
/// expiry in flight.
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

/// A client far from all nodes, which is cut off after a while.
fn cut_far_holder(
    random: &mut Random,
    nodes: &[MachineId],
    holder: MachineId,
    now: Duration,
    faults: &mut Vec<(Duration, Fault)>,
) {
    let far = random.between_ms(150, 400);
    let cut = now + random.between_ms(1_000, 2_500);
    let heals = cut + random.between_ms(3_000, 6_000);
    for node in nodes {
        for (from, to) in [(holder, *node), (*node, holder)] {
            faults.push((now, Fault::Slow(from, to, far)));
            faults.push((cut, Fault::Cut(from, to)));
        }
        faults.push((heals, Fault::Heal(holder, *node)));
    }
}

/// Heals all links.
pub(super) fn heal_all(network: &Network, machines: &[MachineId]) {
    for (place, one) in machines.iter().enumerate() {
        for other in &machines[place + 1..] {
            network.heal(*one, *other);
        }
    }
}
