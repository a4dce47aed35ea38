//! Distances between nodes, and the matching timing.

use std::time::Duration;

use lockkeeper_server::raft::{Timing, TimingPreset};

use super::faults::Fault;
use super::network::MachineId;
use super::node::End;
use super::random::Random;

/// The node that forms the cell, and is elected first.
const FIRST_LEADER: MachineId = 1;

/// The follower whose promise becomes shorter at a restart.
const RESTARTED: MachineId = 2;

/// Distances between the nodes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distance {
    /// All nodes in one place.
    Near,
    /// As far apart as this timing allows.
    Far(TimingPreset),
    /// In one place, with mixed timings: each start of a node may use another one.
    Mixed,
    /// The same, and the first leader starts with a longer promise than its followers. When it is cut off, they can elect another
    /// leader long before its own promise would end.
    LongerLeader,
    /// In one place. The first leader and a follower start with a longer promise. When the leader is cut off, that follower is
    /// restarted with a short one, and could elect another leader long before its earlier promise ends.
    RestartedFollower,
}

impl Distance {
    /// Uses a separate generator, so that the rest of a seed does not change.
    pub(super) fn at_random(seed: u64) -> Distance {
        let mut random = Random::new(seed ^ 0x0064_6973_7461_6e63);
        match random.below(10) {
            0 => Distance::Far(TimingPreset::Lan),
            1 => Distance::Far(TimingPreset::Region),
            2 => Distance::Far(TimingPreset::Global),
            3 => Distance::Mixed,
            4 => Distance::LongerLeader,
            5 => Distance::RestartedFollower,
            _ => Distance::Near,
        }
    }

    /// The distances of a quiet cell, of which some are far apart: the time that an entry takes to a member counts.
    pub(super) fn of_quiet_cell(seed: u64) -> Distance {
        let mut random = Random::new(seed ^ 0x0071_7569_6574);
        match random.below(4) {
            0 => Distance::Far(TimingPreset::Region),
            1 | 2 => Distance::Far(TimingPreset::Global),
            _ => Distance::Near,
        }
    }

    /// The timing of a node at a start.
    pub(super) fn timing(self, node: MachineId, is_first: bool, random: &mut Random) -> Timing {
        let preset = match self {
            Distance::Near => TimingPreset::Lan,
            Distance::Far(preset) => preset,
            Distance::LongerLeader if is_first && node == FIRST_LEADER => TimingPreset::Global,
            Distance::RestartedFollower if is_first && [FIRST_LEADER, RESTARTED].contains(&node) => {
                TimingPreset::Global
            }
            Distance::LongerLeader if is_first => TimingPreset::Lan,
            Distance::RestartedFollower => TimingPreset::Lan,
            Distance::Mixed | Distance::LongerLeader => {
                *random.one_of(&[TimingPreset::Lan, TimingPreset::Lan, TimingPreset::Global])
            }
        };
        preset.timing()
    }

    /// The longest promise of a node, and thus the longest time for which a leader serves that is cut off.
    pub(super) fn promise_max(self) -> Duration {
        let longest = match self {
            Distance::Near => TimingPreset::Lan,
            Distance::Far(preset) => preset,
            Distance::Mixed | Distance::LongerLeader | Distance::RestartedFollower => TimingPreset::Global,
        };
        longest.timing().promise()
    }

    /// Faults for this distance.
    pub(super) fn faults(self, seed: u64, clients: usize) -> Vec<(Duration, Fault)> {
        if !matches!(self, Distance::LongerLeader | Distance::RestartedFollower) {
            return Vec::new();
        }
        let mut random = Random::new(seed ^ 0x6c6f_6e67_6572);
        let at = random.between_ms(1_500, 3_500);
        let split = Fault::Split(random.below(1 << clients), random.between_ms(2_000, 7_000));
        let mut faults = vec![(at, split)];
        if self == Distance::RestartedFollower {
            faults.push((at, Fault::Kill(RESTARTED, End::Killed)));
            faults.push((at + random.between_ms(10, 200), Fault::Start(RESTARTED)));
        }
        faults
    }

    /// Additional one-way latency between nodes.
    pub(super) fn one_way(self) -> Duration {
        Duration::from_millis(match self {
            Distance::Near | Distance::Mixed | Distance::LongerLeader | Distance::RestartedFollower => 0,
            Distance::Far(TimingPreset::Lan) => 20,
            Distance::Far(TimingPreset::Region) => 65,
            Distance::Far(TimingPreset::Global) => 185,
        })
    }
}
