//! History of a lock, the audit trail, contention and waits. The types are those of the HTTP contract.

use std::time::Duration;

pub use lockkeeper_api::history::{Audit, AuditAct, AuditActKind, LeaderChange, LockEvent, LockEventKind};
pub use lockkeeper_api::top::{Contended, Hour, LongHeld, Spread, Top};
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::fencing::Fencing;
use crate::keeper::Keeper;

/// A waiter that is blocked by a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocked {
    /// The owner of the waiter.
    pub waiter: String,
    /// The lock.
    pub lock: String,
    /// The owner of the holder that blocks it.
    pub holder: String,
    /// How long it has waited.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Duration,
    /// Whether both are part of a cycle of sessions that wait for each other.
    pub in_ring: bool,
}

impl<F: Fencing> Keeper<F> {
    /// Returns the last events of a lock, newest first: at most 32, or `limit` if it is lower and not 0.
    ///
    /// The history survives restarts and fail-overs of the cell.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn history(&self, name: &str, limit: u32) -> Result<Vec<LockEvent>, Error> {
        self.shared.engine.history(name, limit).await
    }

    /// Returns the actions of operators and the changes of leader, newest first; a limit of 0 means the last 100 of each.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn audit(&self, limit: u32) -> Result<Audit, Error> {
        self.shared.engine.audit(limit).await
    }

    /// Returns the most contended locks, those held the longest, and statistics of the last hour.
    ///
    /// Each list has at most `limit` locks; 0 means 10.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn top(&self, limit: u32) -> Result<Top, Error> {
        self.shared.engine.top(limit).await
    }

    /// Returns who waits for whom: the waiters of this lock, and transitively those that block its holders.
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
