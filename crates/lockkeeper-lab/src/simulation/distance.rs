//! How far apart the nodes are, and which timing they have for it.

use std::time::Duration;

use lockkeeper_server::raft::{Timing, TimingPreset};

use super::random::Random;

/// How far apart the nodes of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distance {
    /// In one place.
    Near,
    /// As far as this timing is made for.
    Far(TimingPreset),
    /// In one place, while people change the timing: each life of a node may have another one.
    Mixed,
}

impl Distance {
    /// By a source of its own: the rest of a seed stays as it was.
    pub(super) fn at_random(seed: u64) -> Distance {
        let mut random = Random::new(seed ^ 0x0064_6973_7461_6e63);
        match random.below(10) {
            0 => Distance::Far(TimingPreset::Lan),
            1 => Distance::Far(TimingPreset::Region),
            2 => Distance::Far(TimingPreset::Global),
            3 | 4 => Distance::Mixed,
            _ => Distance::Near,
        }
    }

    /// The timing of a node that is started.
    pub(super) fn timing(self, random: &mut Random) -> Timing {
        match self {
            Distance::Near => TimingPreset::Lan.timing(),
            Distance::Far(preset) => preset.timing(),
            Distance::Mixed => {
                random.one_of(&[TimingPreset::Lan, TimingPreset::Lan, TimingPreset::Global]).timing()
            }
        }
    }

    /// The way from one node to another, beside what it takes in one place.
    pub(super) fn one_way(self) -> Duration {
        Duration::from_millis(match self {
            Distance::Near | Distance::Mixed => 0,
            Distance::Far(TimingPreset::Lan) => 20,
            Distance::Far(TimingPreset::Region) => 65,
            Distance::Far(TimingPreset::Global) => 185,
        })
    }
}
