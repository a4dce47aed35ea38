//! Versions of the nodes of a run: some runs are the middle of a rolling upgrade.

use lockkeeper_server::formation::versions::Versions;

use super::faults::FaultKinds;
use super::network::MachineId;
use super::random::Random;

/// Versions of the nodes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgrades {
    /// All nodes run the released version.
    None,
    /// This node stays on the released version. The others run the next one, some from their first restart on. The cell version
    /// must not be raised, because this node could not read the log any more.
    AllBut(MachineId, FromStart),
    /// All nodes run the next version from their first restart on. The cell version is raised when all have been restarted.
    AtRestart,
}

/// Whether upgraded nodes run the next version from their first start on.
pub(super) type FromStart = bool;

impl Upgrades {
    /// Uses a separate generator, so that the rest of a seed does not change.
    pub(super) fn at_random(seed: u64, kinds: FaultKinds, calm: bool) -> Upgrades {
        let mut random = Random::new(seed ^ 0x0075_7067_7261_6465);
        // A node that joins a cell of a higher version would be refused.
        if calm || kinds.members {
            return Upgrades::None;
        }
        match random.below(6) {
            0 => Upgrades::AtRestart,
            1 => Upgrades::AllBut(1 + random.below(3) as MachineId, random.once_in(2)),
            _ => Upgrades::None,
        }
    }

    /// The versions of a node at a start.
    pub(super) fn versions(self, node: MachineId, is_first: bool) -> Versions {
        let is_next = match self {
            Upgrades::None => false,
            Upgrades::AllBut(old, from_start) => node != old && (from_start || !is_first),
            Upgrades::AtRestart => !is_first,
        };
        if is_next { Versions::NEXT } else { Versions::RELEASED }
    }
}
