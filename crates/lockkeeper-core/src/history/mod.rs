//! Recent history: the last events of each lock, the actions of operators, and the leaders of the cell.
//!
//! The history is part of the replicated table, so it survives restarts and fail-overs and is the same on every node. It
//! is derived from the answers and effects of each entry (`record.rs`). No decision depends on it.
//!
//! It must cost next to nothing at a hundred thousand grants a second, and still remember for days what happened to a
//! lock that is used once a day. So it has two parts. Every event is appended to `recent`, which keeps the last
//! [`RECENT_MAX`] events of all locks together: this append is the whole cost on a busy cell. Events evicted from it go to
//! the ring buffer of their lock, which keeps [`EVENTS_PER_LOCK_MAX`]: all events of lost grants, and up to
//! [`KEPT_PER_SECOND_MAX`] others. All rings together keep [`EVENTS_MAX`]; beyond that, the lock with the oldest last
//! event loses its ring.

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
use crate::weighed::{LogicalBytes, SizedMap};

use self::recent::{Page, Recent};
use self::rings::Rings;
pub(crate) use self::snapshot::HistoryRecord;

/// Maximum number of events shown of one lock, and kept in its ring.
pub const EVENTS_PER_LOCK_MAX: usize = 32;
/// Maximum number of recent events of all locks together: about 2 MB.
pub const RECENT_MAX: usize = 16 * recent::PAGE;
/// Maximum number of events in all rings together: about 7 MB.
pub const EVENTS_MAX: usize = 65_536;
/// Maximum number of ordinary events kept in rings per second of cell time.
pub const KEPT_PER_SECOND_MAX: u64 = 4_096;
/// Maximum number of operator actions that are kept.
pub const ACTS_MAX: usize = 1_000;
/// Maximum number of leader changes that are kept.
pub const LEADERS_MAX: usize = 256;

/// An event of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockEvent {
    /// When, in cell time.
    pub at: CellTime,
    /// The leader's wall clock at that moment, in milliseconds since 1970 UTC. For people; never used for decisions.
    pub utc_ms: u64,
    /// The kind of event.
    pub kind: LockEventKind,
    /// The token of the grant.
    pub token: Token,
    /// The mode, if it is a grant.
    pub mode: Option<Mode>,
    /// The owner of the holder's session.
    pub owner: SmolStr,
    /// The first digits of the session's id: enough to tell sessions apart, not enough to use one.
    pub session: ShortSession,
    /// The time waited for the grant, or the time held until its end, in cell time.
    pub took_ms: u64,
    /// The operator's reason for a force-release; empty otherwise.
    pub reason: SmolStr,
}

/// The kind of a lock event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockEventKind {
    /// The lock was granted.
    Granted,
    /// A grant ended.
    Ended(Freed),
}

impl LockEventKind {
    /// The name used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            LockEventKind::Granted => "granted",
            LockEventKind::Ended(freed) => freed.as_str(),
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

/// An action of an operator, in the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorAction {
    /// Its number among all actions of the cell.
    pub number: u64,
    /// When, in cell time.
    pub at: CellTime,
    /// The leader's wall clock at that moment; `None` until an entry that has it follows.
    pub utc_ms: Option<u64>,
    /// The kind of action.
    pub kind: ActionKind,
}

/// The kind of an operator's action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionKind {
    /// A lock was freed by force.
    ForceRelease {
        /// The authenticated caller; empty if unknown.
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
        /// The new members, for people.
        members: SmolStr,
    },
    /// The cell was restored from a backup.
    Restored {
        /// The last token after the restore.
        last_token: Token,
    },
    /// Rules, tokens or quotas were changed.
    Access {
        /// The authenticated caller; empty if unknown.
        by: SmolStr,
        /// The change, in one line.
        change: SmolStr,
    },
    /// An action outside the table.
    Note {
        /// The authenticated caller; empty if unknown.
        by: SmolStr,
        /// The action, in one line.
        text: SmolStr,
    },
}

impl ActionKind {
    /// The name used in the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            ActionKind::ForceRelease { .. } => "force_release",
            ActionKind::Members { .. } => "members",
            ActionKind::Restored { .. } => "restored",
            ActionKind::Access { .. } => "access",
            ActionKind::Note { .. } => "note",
        }
    }
}

/// A node that became leader of the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// When, in cell time, which does not advance without a leader.
    pub at: CellTime,
    /// The leader's wall clock at that moment; `None` until an entry that has it follows.
    pub utc_ms: Option<u64>,
    /// The term.
    pub term: u64,
    /// The node.
    pub node: u64,
}

/// The history of the cell.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct History {
    pub(crate) recent: Recent,
    pub(crate) rings: Rings,
    /// Number of ordinary events that may still go into rings.
    budget: u64,
    /// When the budget was last refilled.
    filled: CellTime,
    pub(crate) acts: Vector<OperatorAction>,
    // Invariant: the logical bytes of all actions.
    pub(crate) acts_bytes: u64,
    acts_next: u64,
    pub(crate) leaders: Vector<Leader>,
    /// The owners of ended sessions whose grants are not all freed yet.
    pub(crate) owners_of_ended_sessions: SizedMap<SessionId, SmolStr>,
    /// Ended sessions whose last grant was freed in this entry; empty between entries.
    pub(crate) cleared: Vec<SessionId>,
}

impl History {
    fn push(&mut self, lock: &LockName, event: LockEvent) {
        if let Some(page) = self.recent.push(lock, event) {
            self.retire(page);
        }
    }

    /// Moves events that are no longer recent into the rings, within the budget.
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
            let lost = matches!(
                event.kind,
                LockEventKind::Ended(Freed::SessionExpired | Freed::Forced | Freed::Wounded)
            );
            if lost || self.budget > 0 {
                self.budget = self.budget.saturating_sub(u64::from(!lost));
                self.rings.push(lock, event);
            }
        }
    }

    /// Keeps the owner of an ended session until its grants are freed.
    pub(crate) fn session_ended(&mut self, session: SessionId, owner: SmolStr) {
        self.owners_of_ended_sessions.insert(session, owner);
    }

    fn record_action(&mut self, at: CellTime, utc_ms: Option<u64>, kind: ActionKind) {
        self.add_action(OperatorAction { number: self.acts_next, at, utc_ms, kind });
        self.acts_next += 1;
        if self.acts.len() > ACTS_MAX
            && let Some(oldest) = self.acts.pop_front()
        {
            self.acts_bytes -= oldest.logical_bytes();
        }
    }

    fn add_action(&mut self, act: OperatorAction) {
        self.acts_bytes += act.logical_bytes();
        self.acts.push_back(act);
    }

    pub(crate) fn record_leader(&mut self, leader: Leader) {
        self.leaders.push_back(leader);
        if self.leaders.len() > LEADERS_MAX {
            self.leaders.pop_front();
        }
    }

    /// Whether an action or a leader change of an entry without UTC still waits for the UTC of a later entry.
    pub(crate) fn awaits_utc(&self) -> bool {
        self.acts.last().is_some_and(|act| act.utc_ms.is_none())
            || self.leaders.last().is_some_and(|leader| leader.utc_ms.is_none())
    }

    /// Sets the UTC of actions and leader changes that have none to that of this later entry.
    pub(crate) fn set_utc(&mut self, utc_ms: u64) {
        // Invariant: the ones without UTC are the last ones.
        for act in self.acts.iter_mut().rev().take_while(|act| act.utc_ms.is_none()) {
            act.utc_ms = Some(utc_ms);
        }
        for leader in self.leaders.iter_mut().rev().take_while(|leader| leader.utc_ms.is_none()) {
            leader.utc_ms = Some(utc_ms);
        }
    }

    /// The last events of a lock, newest first.
    fn of<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = &'a LockEvent> + use<'a> {
        self.recent.of(lock).chain(self.rings.of(lock)).take(EVENTS_PER_LOCK_MAX).inspect(|_| reads::count(1))
    }
}

impl crate::table::LockTable {
    /// The last events of a lock, newest first.
    pub fn history<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = &'a LockEvent> + use<'a> {
        self.history.of(lock)
    }

    /// The actions of operators, newest first.
    pub fn acts(&self) -> impl Iterator<Item = &OperatorAction> {
        self.history.acts.iter().rev().inspect(|_| reads::count(1))
    }

    /// The leaders of the cell, newest first.
    pub fn leaders(&self) -> impl Iterator<Item = Leader> + '_ {
        self.history.leaders.iter().rev().copied()
    }

    /// The number of events in the history.
    pub fn history_len(&self) -> usize {
        self.history.recent.len() + self.history.rings.len()
    }
}
