//! What happened: the last events of a lock, what operators did, and contention. The types are those of the HTTP contract.

use std::time::Duration;

pub use lockkeeper_api::history::{Audit, AuditAct, LeaderChange, LockEvent};
pub use lockkeeper_api::top::{Contended, Hour, LongHeld, Spread, Top};
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::fencing::Fencing;
use crate::keeper::Keeper;

/// One who waits for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocked {
    /// Who waits.
    pub waiter: String,
    /// For which lock.
    pub lock: String,
    /// Who is in its way.
    pub holder: String,
    /// For how long it has waited.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Duration,
    /// Both are part of a ring of sessions that wait for each other.
    pub in_ring: bool,
}

impl<F: Fencing> Keeper<F> {
    /// The last events of a lock, the newest first: at most 32, and fewer if `limit` is not 0. It survives restarts and
    /// fail-overs of the cell.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn history(&self, name: &str, limit: u32) -> Result<Vec<LockEvent>, Error> {
        self.shared.engine.history(name, limit).await
    }

    /// What operators did and who led the cell, the newest first; 0 means the last hundred of each.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn audit(&self, limit: u32) -> Result<Audit, Error> {
        self.shared.engine.audit(limit).await
    }

    /// Where to look first: the locks that most wait for, those held the longest, the last hour in figures. At most
    /// `limit` locks in each list; 0 means ten.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn top(&self, limit: u32) -> Result<Top, Error> {
        self.shared.engine.top(limit).await
    }

    /// Who waits for whom, beginning with those who wait for this lock, and on to what its holders wait for in turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn blocked(&self, name: &str) -> Result<Vec<Blocked>, Error> {
        self.shared.engine.blocked(name).await
    }
}

fn as_ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
