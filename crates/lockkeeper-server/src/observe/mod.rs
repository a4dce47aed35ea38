//! What people look at: the history of a lock, what operators did, where it is crowded, who waits for whom, the
//! sessions and the health of the cell. Each file makes one picture out of the lock table; HTTP, gRPC, the console and
//! the CLI show the same ones.
//!
//! A picture has a bound of its own, so that a million locks cost no more than a hundred.

pub mod audit;
pub mod cell;
pub mod disk;
pub mod graph;
pub mod history;
pub mod locks;
pub mod sessions;
pub mod top;

use std::sync::MutexGuard;

use lockkeeper_core::{CellTime, LockTable};

use crate::calls::Calls;
use crate::failure::Failure;

/// The table as of one moment, and how that moment is called in cell time.
pub struct Look<'a> {
    /// The table.
    pub table: MutexGuard<'a, LockTable>,
    /// The moment: durations are counted up to it.
    pub now: CellTime,
}

impl Calls {
    /// A look that is true for the whole cell: only the leader has it.
    pub fn look(&self) -> Result<Look<'_>, Failure> {
        let now = self.now()?;
        Ok(Look { table: self.shared().table(), now })
    }

    /// What this node has applied, whoever leads: on a follower it may be a moment old. Durations are counted up to
    /// the last entry, so that nothing changes in it as long as nothing happens.
    pub fn look_here(&self) -> Look<'_> {
        let table = self.shared().table();
        let now = table.now();
        Look { table, now }
    }
}
