//! What happened lately: the last events of each lock, what operators did, and who led the cell.
//!
//! It is part of the replicated table, so it survives restarts and fail-overs and is the same on every node. It is
//! fed from the answers and effects of each entry (`record.rs`), decides nothing, and is bounded: a lock keeps its
//! last [`EVENTS_PER_LOCK_MAX`] events, all locks together [`EVENTS_MAX`]. Beyond that, the lock whose last event is
//! the oldest loses its history as a whole.

mod record;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::command::Mode;
use crate::effect::Freed;
use crate::id::{CellTime, LockName, SessionId, Token};

pub(crate) use self::snapshot::HistoryRecord;

/// Events kept of one lock.
pub const EVENTS_PER_LOCK_MAX: usize = 32;
/// Events kept of all locks together: about 12 MB.
pub const EVENTS_MAX: usize = 131_072;
/// Acts of operators that are kept.
pub const ACTS_MAX: usize = 1_000;
/// So many sessions may be in `leaving` that have left already, before it is swept.
const LEFT_MAX: usize = 1_024;
/// Changes of the leader that are kept.
pub const LEADERS_MAX: usize = 256;

/// One thing that happened to a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockEvent {
    /// When, in cell time.
    pub at: CellTime,
    /// What.
    pub what: What,
    /// The token of the grant.
    pub token: Token,
    /// Alone or shared, if it is a grant.
    pub mode: Option<Mode>,
    /// Who holds it, or held it.
    pub owner: SmolStr,
    /// The beginning of the session's id: enough to tell sessions apart, and not enough to act in its name.
    pub session: ShortSession,
    /// How long it waited for the grant, or held it until the end, in cell time.
    pub took_ms: u64,
    /// Why, in the operator's words, if it was taken away by force.
    pub reason: SmolStr,
}

/// What can happen to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A holder was let in.
    Granted,
    /// A grant ended.
    Ended(Freed),
}

impl What {
    /// The word used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            What::Granted => "granted",
            What::Ended(Freed::Released) => "released",
            What::Ended(Freed::SessionClosed) => "session_closed",
            What::Ended(Freed::SessionExpired) => "session_expired",
            What::Ended(Freed::Forced) => "forced",
            What::Ended(Freed::Cancelled) => "cancelled",
        }
    }
}

/// The first eight digits of a session's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ShortSession(pub u32);

impl From<SessionId> for ShortSession {
    fn from(session: SessionId) -> ShortSession {
        ShortSession((session.0 >> 96) as u32)
    }
}

impl std::fmt::Display for ShortSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Something that an operator did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// Counts all acts of the cell.
    pub number: u64,
    /// When, in cell time.
    pub at: CellTime,
    /// What.
    pub deed: Deed,
}

/// What operators do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deed {
    /// A lock was freed by force.
    ForceRelease {
        /// The lock.
        lock: LockName,
        /// Why, in the operator's words.
        reason: SmolStr,
        /// How many grants were taken away.
        released: u32,
        /// The lock's last token afterwards.
        last_token: Token,
    },
    /// The members of the cell were changed.
    Members {
        /// The members since then, for people.
        members: SmolStr,
    },
    /// The cell was made from a backup.
    Restored {
        /// The last token since then.
        last_token: Token,
    },
}

impl Deed {
    /// The word used in the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Deed::ForceRelease { .. } => "force_release",
            Deed::Members { .. } => "members",
            Deed::Restored { .. } => "restored",
        }
    }
}

/// A node that came to lead the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// When, in cell time, which stands still while nobody leads.
    pub at: CellTime,
    /// The term.
    pub term: u64,
    /// The node.
    pub node: u64,
}

/// The hash first: names are long and alike, so most comparisons end there.
type Key = (u64, LockName);

/// The last events of one lock.
#[derive(Debug, Clone, PartialEq)]
struct Ring {
    events: VecDeque<LockEvent>,
    /// The number of its last event.
    last: u64,
    // Invariant: its key in `History::order`, not above `last`.
    listed: u64,
}

/// All that is remembered.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct History {
    // Shared until changed, so that a copy of the table for a snapshot does not copy the events.
    rings: OrdMap<Key, Arc<Ring>>,
    /// The locks by an event that was once their last: the next to be forgotten is found without touching this at
    /// every event.
    order: OrdMap<u64, Key>,
    // Invariant: the number of events in all rings.
    count: usize,
    /// Counts all events of the cell.
    next: u64,
    acts: Vector<Act>,
    acts_next: u64,
    leaders: Vector<Leader>,
    /// The owners of sessions that have ended and still have something to be taken back.
    leaving: OrdMap<SessionId, SmolStr>,
}

impl History {
    fn push(&mut self, lock: &LockName, event: LockEvent) {
        let number = self.next;
        self.next += 1;
        let key = (hash(lock), lock.clone());
        match self.rings.get_mut(&key) {
            Some(ring) => {
                let ring = Arc::make_mut(ring);
                if ring.events.len() == EVENTS_PER_LOCK_MAX {
                    ring.events.pop_front();
                } else {
                    self.count += 1;
                }
                ring.events.push_back(event);
                ring.last = number;
            }
            None => {
                let ring = Ring { events: VecDeque::from([event]), last: number, listed: number };
                self.rings.insert(key.clone(), Arc::new(ring));
                self.order.insert(number, key);
                self.count += 1;
            }
        }
        while self.count > EVENTS_MAX {
            self.forget_oldest();
        }
    }

    /// Forgets the lock whose last event is the oldest. One that had an event since it was listed is listed anew: that
    /// costs as much as the event saved.
    fn forget_oldest(&mut self) {
        let Some((listed, key)) = self.order.get_min().cloned() else { return };
        self.order.remove(&listed);
        let Some(ring) = self.rings.get_mut(&key) else { return };
        if ring.last > listed {
            let ring = Arc::make_mut(ring);
            ring.listed = ring.last;
            self.order.insert(ring.last, key);
        } else if let Some(ring) = self.rings.remove(&key) {
            self.count -= ring.events.len();
        }
    }

    fn act(&mut self, at: CellTime, deed: Deed) {
        self.acts.push_back(Act { number: self.acts_next, at, deed });
        self.acts_next += 1;
        if self.acts.len() > ACTS_MAX {
            self.acts.pop_front();
        }
    }

    pub(crate) fn lead(&mut self, leader: Leader) {
        self.leaders.push_back(leader);
        if self.leaders.len() > LEADERS_MAX {
            self.leaders.pop_front();
        }
    }

    /// The last events of a lock, the newest first.
    fn of<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = &'a LockEvent> + use<'a> {
        let ring = self.rings.get(&(hash(lock), lock.clone()));
        ring.into_iter().flat_map(|ring| ring.events.iter().rev())
    }
}

impl crate::table::LockTable {
    /// The last events of a lock, the newest first.
    pub fn history<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = &'a LockEvent> + use<'a> {
        self.history.of(lock)
    }

    /// What operators did, the newest first.
    pub fn acts(&self) -> impl Iterator<Item = &Act> {
        self.history.acts.iter().rev()
    }

    /// Who came to lead the cell, the newest first.
    pub fn leaders(&self) -> impl Iterator<Item = Leader> + '_ {
        self.history.leaders.iter().rev().copied()
    }

    /// How many events are remembered of how many locks.
    pub fn history_size(&self) -> (usize, usize) {
        (self.history.count, self.history.rings.len())
    }
}

/// Spreads names; it need not withstand anybody, because equal hashes are told apart by the names themselves.
fn hash(name: &str) -> u64 {
    let mut sum = name.len() as u64;
    for part in name.as_bytes().chunks(8) {
        let mut eight = [0; 8];
        eight[..part.len()].copy_from_slice(part);
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(eight)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    sum ^ (sum >> 32)
}
