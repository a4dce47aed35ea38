//! What happened lately: the last events of each lock, what operators did, and who led the cell.
//!
//! It is part of the replicated table, so it survives restarts and fail-overs and is the same on every node. It is
//! fed from the answers and effects of each entry (`record.rs`) and decides nothing.
//!
//! It must cost next to nothing at a hundred thousand grants a second, and still know tomorrow what became of a lock
//! that is used once a day. So there are two parts. Everything goes into `recent`, which keeps the last
//! [`RECENT_MAX`] events of all locks in one row: writing one there is all that a busy cell pays. What falls out of it
//! goes into the ring of its lock, which keeps [`EVENTS_PER_LOCK_MAX`]: always if a grant was lost, and up to
//! [`KEPT_PER_SECOND_MAX`] of the rest. All rings together keep [`EVENTS_MAX`]; beyond that, the lock whose last event
//! is the oldest loses its ring.

mod recent;
mod record;
mod rings;
mod snapshot;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use imbl::Vector;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::command::Mode;
use crate::effect::Freed;
use crate::id::{CellTime, LockName, SessionId, Token};
use crate::reads;
use crate::weighed::{Weigh, Weighed};

use self::recent::{Page, Recent};
use self::rings::Rings;
pub(crate) use self::snapshot::HistoryRecord;

/// Events shown of one lock, and kept of it in its ring.
pub const EVENTS_PER_LOCK_MAX: usize = 32;
/// The last events of all locks that are kept in full: about 2 MB.
pub const RECENT_MAX: usize = 16 * recent::PAGE;
/// Events in all rings together: about 7 MB.
pub const EVENTS_MAX: usize = 65_536;
/// So many ordinary events of a second of cell time find their way into a ring.
pub const KEPT_PER_SECOND_MAX: u64 = 4_096;
/// Acts of operators that are kept.
pub const ACTS_MAX: usize = 1_000;
/// Changes of the leader that are kept.
pub const LEADERS_MAX: usize = 256;

/// One thing that happened to a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockEvent {
    /// When, in cell time.
    pub at: CellTime,
    /// The leader's wall clock at that moment, in milliseconds since 1970 UTC. For people: nothing is decided by it.
    pub utc_ms: u64,
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
            What::Ended(Freed::Wounded) => "wounded",
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
    /// The leader's wall clock at that moment; `None` until an entry that has it follows.
    pub utc_ms: Option<u64>,
    /// What.
    pub deed: Deed,
}

/// What operators do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deed {
    /// A lock was freed by force.
    ForceRelease {
        /// Who did it; empty if nobody is known.
        by: SmolStr,
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
    /// Rules, tokens or quotas were changed.
    Access {
        /// Who did it; empty if nobody is known.
        by: SmolStr,
        /// How, in a line.
        change: SmolStr,
    },
    /// Something that was done outside the table.
    Note {
        /// Who did it; empty if nobody is known.
        by: SmolStr,
        /// What, in a line.
        text: SmolStr,
    },
}

impl Deed {
    /// The word used in the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Deed::ForceRelease { .. } => "force_release",
            Deed::Members { .. } => "members",
            Deed::Restored { .. } => "restored",
            Deed::Access { .. } => "access",
            Deed::Note { .. } => "note",
        }
    }
}

/// A node that came to lead the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// When, in cell time, which stands still while nobody leads.
    pub at: CellTime,
    /// The leader's wall clock at that moment; `None` until an entry that has it follows.
    pub utc_ms: Option<u64>,
    /// The term.
    pub term: u64,
    /// The node.
    pub node: u64,
}

/// All that is remembered.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct History {
    pub(crate) recent: Recent,
    pub(crate) rings: Rings,
    /// Ordinary events that may still go into a ring.
    budget: u64,
    /// When the budget was last filled up.
    filled: CellTime,
    pub(crate) acts: Vector<Act>,
    // Invariant: the logical bytes of all acts.
    pub(crate) acts_bytes: u64,
    acts_next: u64,
    pub(crate) leaders: Vector<Leader>,
    /// The owners of sessions that have ended and still have something to be taken back.
    pub(crate) leaving: Weighed<SessionId, SmolStr>,
    /// Those whose last grant was taken back in this entry; empty between entries.
    pub(crate) left: Vec<SessionId>,
}

impl History {
    fn push(&mut self, lock: &LockName, event: LockEvent) {
        if let Some(page) = self.recent.push(lock, event) {
            self.retire(page);
        }
    }

    /// Puts what is no longer recent into the rings, as far as the budget goes.
    #[cold]
    fn retire(&mut self, page: Arc<Page>) {
        let page = Arc::unwrap_or_clone(page);
        let now = page.last().map_or(self.filled, |(_, event)| event.at);
        let earned = now.ms_since(self.filled).saturating_mul(KEPT_PER_SECOND_MAX) / 1_000;
        if earned > 0 {
            self.budget = self.budget.saturating_add(earned).min(KEPT_PER_SECOND_MAX);
            self.filled = now;
        }
        for (lock, event) in page.into_events() {
            let lost =
                matches!(event.what, What::Ended(Freed::SessionExpired | Freed::Forced | Freed::Wounded));
            if lost || self.budget > 0 {
                self.budget = self.budget.saturating_sub(u64::from(!lost));
                self.rings.push(lock, event);
            }
        }
    }

    /// A session has ended, and what it held is still to be taken back.
    pub(crate) fn session_leaves(&mut self, session: SessionId, owner: SmolStr) {
        self.leaving.insert(session, owner);
    }

    fn act(&mut self, at: CellTime, utc_ms: Option<u64>, deed: Deed) {
        self.add_act(Act { number: self.acts_next, at, utc_ms, deed });
        self.acts_next += 1;
        if self.acts.len() > ACTS_MAX
            && let Some(oldest) = self.acts.pop_front()
        {
            self.acts_bytes -= oldest.weigh();
        }
    }

    fn add_act(&mut self, act: Act) {
        self.acts_bytes += act.weigh();
        self.acts.push_back(act);
    }

    pub(crate) fn lead(&mut self, leader: Leader) {
        self.leaders.push_back(leader);
        if self.leaders.len() > LEADERS_MAX {
            self.leaders.pop_front();
        }
    }

    /// Whether an act or a change of the leader came with an entry that has no UTC, and none that has it followed.
    pub(crate) fn awaits_utc(&self) -> bool {
        self.acts.last().is_some_and(|act| act.utc_ms.is_none())
            || self.leaders.last().is_some_and(|leader| leader.utc_ms.is_none())
    }

    /// Gives them the UTC of the entry that followed.
    pub(crate) fn set_utc(&mut self, utc_ms: u64) {
        // Invariant: those without UTC are the last.
        for act in self.acts.iter_mut().rev().take_while(|act| act.utc_ms.is_none()) {
            act.utc_ms = Some(utc_ms);
        }
        for leader in self.leaders.iter_mut().rev().take_while(|leader| leader.utc_ms.is_none()) {
            leader.utc_ms = Some(utc_ms);
        }
    }

    /// The last events of a lock, the newest first.
    fn of<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = &'a LockEvent> + use<'a> {
        self.recent.of(lock).chain(self.rings.of(lock)).take(EVENTS_PER_LOCK_MAX).inspect(|_| reads::count(1))
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

    /// How many events are remembered.
    pub fn history_len(&self) -> usize {
        self.history.recent.len() + self.history.rings.len()
    }
}
