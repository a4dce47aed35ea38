//! What people look at: the history of a lock, what operators did, where it is crowded, who waits for whom, the
//! sessions and the health of the cell. Each file makes one picture out of the lock table; HTTP, gRPC, the console and
//! the CLI show the same ones.
//!
//! A picture has a bound of its own, so that a million locks cost no more than a hundred.

pub mod audit;
pub mod cell;
pub mod disk;
pub mod elections;
pub mod figures;
pub mod graph;
pub mod history;
pub mod locks;
pub mod sessions;
#[cfg(test)]
mod tests;
pub mod top;

use std::sync::MutexGuard;

use lockkeeper_api::v1;
use lockkeeper_core::{CellTime, LockTable, Right};

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

    /// The last events of a lock, on the wire.
    pub fn history(&self, request: &v1::GetHistoryRequest) -> Result<v1::LockHistory, Failure> {
        self.may(Right::Read, &request.lock)?;
        Ok(self.look()?.history(&request.lock, request.limit as usize)?.into())
    }

    /// What operators did, on the wire.
    pub fn audit(&self, request: &v1::GetAuditRequest) -> Result<v1::Audit, Failure> {
        self.may_all(Right::Read, "")?;
        Ok(self.look()?.audit(request.limit as usize).into())
    }

    /// Where to look first, on the wire.
    pub fn top(&self, request: &v1::GetTopRequest) -> Result<v1::Top, Failure> {
        self.may_all(Right::Read, "")?;
        Ok(self.look()?.top(&self.shared().hourly_stats, request.limit as usize).into())
    }

    /// Who waits for whom, on the wire.
    pub fn wait_graph(&self, request: &v1::GetWaitGraphRequest) -> Result<v1::WaitGraph, Failure> {
        self.may_all(Right::Read, "")?;
        let lock = (!request.lock.is_empty()).then_some(request.lock.as_str());
        Ok(self.look()?.graph(lock)?.into())
    }

    /// What this node has applied, whoever leads: on a follower it may be a moment old. Durations are counted up to
    /// the last entry, so that nothing changes in it as long as nothing happens.
    pub fn look_here(&self) -> Look<'_> {
        let table = self.shared().table();
        let now = table.now();
        Look { table, now }
    }
}
