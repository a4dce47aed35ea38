//! Distances between nodes, and the matching timing.

use std::time::Duration;

use lockkeeper_server::raft::{Timing, TimingPreset};

use super::faults::Fault;
use super::network::MachineId;
use super::random::Random;

/// The node that forms the cell, and is elected first.
const FIRST_LEADER: MachineId = 1;

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
            _ => Distance::Near,
        }
    }

    /// The timing of a node at a start.
    pub(super) fn timing(self, node: MachineId, is_first: bool, random: &mut Random) -> Timing {
        let preset = match self {
            Distance::Near => TimingPreset::Lan,
            Distance::Far(preset) => preset,
            Distance::LongerLeader if is_first && node == FIRST_LEADER => TimingPreset::Global,
            Distance::LongerLeader if is_first => TimingPreset::Lan,
            Distance::Mixed | Distance::LongerLeader => {
                *random.one_of(&[TimingPreset::Lan, TimingPreset::Lan, TimingPreset::Global])
            }
        };
        preset.timing()
    }

    /// Faults for this distance.
    pub(super) fn faults(self, seed: u64, clients: usize) -> Vec<(Duration, Fault)> {
        if self != Distance::LongerLeader {
            return Vec::new();
        }
        let mut random = Random::new(seed ^ 0x6c6f_6e67_6572);
        let at = random.between_ms(1_500, 3_500);
        vec![(at, Fault::Split(random.below(1 << clients), random.between_ms(2_000, 7_000)))]
    }

    /// Additional one-way latency between nodes.
    pub(super) fn one_way(self) -> Duration {
        Duration::from_millis(match self {
            Distance::Near | Distance::Mixed | Distance::LongerLeader => 0,
            Distance::Far(TimingPreset::Lan) => 20,
            Distance::Far(TimingPreset::Region) => 65,
            Distance::Far(TimingPreset::Global) => 185,
        })
    }
}
