//! A client's lifeline, and the answers that its retries can ask for again.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::effect::Grant;
use crate::id::{CellTime, Ticket};
use crate::refusal::Refusal;

/// A session that is alive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// How long it lives without a renewal.
    pub ttl_ms: u64,
    /// Who it is, for people.
    pub owner: SmolStr,
    /// When it was opened.
    pub opened: CellTime,
    /// Rises with every command in its name. An expiry that names an older one does nothing (S3).
    pub version: u64,
    // Invariant: the number of its keys in `LockTable::grants`. Restored by counting.
    #[serde(skip)]
    pub(crate) grants: u32,
    // Invariant: the number of its keys in `LockTable::waits`. Restored by counting.
    #[serde(skip)]
    pub(crate) waits: u32,
    // Its settled requests are numbered from `settled_first` (still remembered) to `settled_next`.
    pub(crate) settled_first: u64,
    pub(crate) settled_next: u64,
    /// Whose it is; nobody else can act for it.
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

    /// How many locks-at-once it holds.
    pub fn grants(&self) -> u32 {
        self.grants
    }

    /// How many of its requests wait.
    pub fn waits(&self) -> u32 {
        self.waits
    }
}

/// What became of a request that carried an id: the answer to every retry of it (S5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Remembered {
    /// It waits with this ticket.
    Waiting(Ticket),
    /// It was granted, and may have been given back since.
    Granted(Grant),
    /// It was refused.
    Refused(Refusal),
}
