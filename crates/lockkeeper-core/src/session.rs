//! Sessions, and the answers that are remembered for their retries.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::effect::Grant;
use crate::id::{CellTime, Ticket};
use crate::refusal::Refusal;

/// A live session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its time to live without a renewal.
    pub ttl_ms: u64,
    /// Description of the client, for people.
    pub owner: SmolStr,
    /// When it was opened.
    pub opened: CellTime,
    /// Rises with every command of the session. An expiry with an older version does nothing (S3).
    pub version: u64,
    // Invariant: the number of its keys in `LockTable::grants`. Recounted after a restore.
    #[serde(skip)]
    pub(crate) grants: u32,
    // Invariant: the number of its keys in `LockTable::waits`. Recounted after a restore.
    #[serde(skip)]
    pub(crate) waits: u32,
    // Its remembered settled requests have the numbers `settled_first..settled_next`.
    pub(crate) settled_first: u64,
    pub(crate) settled_next: u64,
    /// The identity that opened it. No other can use it.
    pub identity: Option<SmolStr>,
}

impl Session {
    pub(crate) fn new(ttl_ms: u64, owner: SmolStr, opened: CellTime) -> Session {
        Session {
            ttl_ms,
            owner,
            opened,
            version: 1,
            grants: 0,
            waits: 0,
            settled_first: 0,
            settled_next: 0,
            identity: None,
        }
    }

    /// The number of its grants.
    pub fn grants(&self) -> u32 {
        self.grants
    }

    /// The number of its waiting requests.
    pub fn waits(&self) -> u32 {
        self.waits
    }
}

/// The outcome of a request with an id: the answer to its retries (S5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Remembered {
    /// It waits with this ticket.
    Waiting(Ticket),
    /// It was granted, and may have been released since.
    Granted(Grant),
    /// It was refused.
    Refused(Refusal),
}
