//! The lock table: a state machine over log entries.

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::access::Access;
use crate::bounds::bounds;
use crate::command::{Batch, Command};
use crate::effect::{Answer, Applied, Effect, SessionEnd};
use crate::history::History;
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
use crate::limits;
use crate::lock::{Held, Lock};
use crate::queue::Waiter;
use crate::quota::Counted;
use crate::refusal::Refusal;
use crate::scope::{ScopeNo, Scopes};
use crate::session::{Remembered, Session};
use crate::table_hash::Cursor;
use crate::value::StoredValue;
use crate::version::{CellVersion, check_supported};
use crate::weighed::SizedMap;
use crate::work::{Backlog, Work};

/// The whole state of a cell. Cloning is cheap: copies share their content until one of them changes, so a snapshot can
/// be written while grants continue.
#[derive(Debug, Clone, Default)]
pub struct LockTable {
    /// Index of the last entry that was applied.
    pub(crate) applied: u64,
    // Invariant: monotonic (S2).
    pub(crate) now: CellTime,
    // Invariant: no grant of this table ever had a higher token (S1).
    pub(crate) last_token: Token,
    pub(crate) last_ticket: Ticket,
    // Invariant: never lowered.
    pub(crate) cell_version: CellVersion,
    /// The highest version that this node supports. Not part of the state.
    pub(crate) supported: CellVersion,
    pub(crate) sessions: SizedMap<SessionId, Session>,
    pub(crate) locks: SizedMap<LockName, Lock>,
    pub(crate) grants: SizedMap<(SessionId, Token), Held>,
    pub(crate) waiters: SizedMap<Ticket, Waiter>,
    /// The queue of each lock: its waiters in the order of tickets.
    pub(crate) queues: OrdSet<(LockName, Ticket)>,
    /// The candidates of elections: waiting requests for one lock that have a value.
    pub(crate) candidates: OrdSet<(LockName, SmolStr, Ticket)>,
    /// The waits of each session.
    pub(crate) waits: OrdSet<(SessionId, Ticket)>,
    pub(crate) requests: SizedMap<(SessionId, RequestId), Remembered>,
    /// Settled requests of each session, oldest first: the order in which they are forgotten.
    pub(crate) settled: SizedMap<(SessionId, u64), RequestId>,
    pub(crate) timers: OrdSet<(CellTime, Timer)>,
    /// Ended sessions whose waits and grants are not all freed yet, oldest first.
    pub(crate) ending: OrdMap<u64, (SessionId, SessionEnd)>,
    pub(crate) ending_next: u64,
    /// Ended sessions without waits and grants, whose answers and scopes are not all forgotten yet.
    pub(crate) forgetting: OrdMap<u64, SessionId>,
    /// Work that earlier entries deferred.
    pub(crate) backlog: Backlog,
    /// Counts the steps of an entry.
    pub(crate) work: Work,
    /// Free locks whose last token is still remembered, longest free first.
    pub(crate) free: OrdMap<u64, LockName>,
    pub(crate) free_next: u64,
    // Invariant: no lock that is not in `locks` was ever granted a higher token.
    pub(crate) forgotten: Token,
    pub(crate) values: SizedMap<SmolStr, StoredValue>,
    // Invariant: no removed value ever had a higher version.
    pub(crate) removed_version: u64,
    pub(crate) scopes: Scopes,
    /// When each rate limiter will be full again, in nanoseconds of cell time.
    pub(crate) limiters: SizedMap<SmolStr, u128>,
    pub(crate) limiters_due: OrdSet<(u128, SmolStr)>,
    /// Scopes to wound after the current command; empty between entries.
    pub(crate) to_wound: Vec<ScopeNo>,
    /// The last active session and its owner: a cache for the history, because consecutive commands mostly come from the
    /// same session. `None` between entries.
    pub(crate) last_active: Option<(SessionId, SmolStr)>,
    /// The UTC of the current entry, for the history.
    pub(crate) utc_ms: u64,
    /// Recent history, for people.
    pub(crate) history: History,
    /// Access rules, tokens and quotas.
    pub(crate) access: Access,
    /// The maximum number of logical bytes of state, if an administrator has set it.
    pub(crate) state_bytes_max: Option<u64>,
    /// The rolling hash after the last entry (S13), and the position of the next records that it covers.
    pub(crate) hash: u64,
    pub(crate) cursor: Cursor,
    /// Effects of the current entry; empty between entries.
    pub(crate) effects: Vec<Effect>,
}

/// An action that is due at a given cell time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Timer {
    /// A wait times out.
    WaitEnds(Ticket),
    /// A lock-delay ends.
    Reopens(LockName),
}

/// Mismatch between the log and the table: a bug or a damaged disk, never a user's mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// An entry is repeated or missing.
    #[error("cannot apply entry {got}: the last applied entry is {applied}, so the next must be {}", applied + 1)]
    OutOfOrder {
        /// Index of the last entry that was applied.
        applied: u64,
        /// Index of the given entry.
        got: u64,
    },
    /// The cell has, or is about to have, a version that this node does not support.
    #[error(
        "the cell has version {needed}, and this node supports versions up to {supported}: a cell's version is never lowered, \
         so run the binary that the other members run, or a newer one"
    )]
    NewerVersion {
        /// The version of the cell.
        needed: CellVersion,
        /// The highest version that this node supports.
        supported: CellVersion,
    },
}

impl LockTable {
    /// An empty table.
    pub fn new() -> LockTable {
        LockTable::default()
    }

    /// Applies one entry: the only way in which the table changes.
    pub fn apply(&mut self, index: u64, batch: &Batch) -> Result<Applied, TableError> {
        for command in &batch.commands {
            if let Command::RaiseCellVersion { to } = command {
                check_supported(*to, self.supported)?;
            }
        }
        self.step(index)?;
        self.now = self.now.max(batch.now);
        self.utc_ms = batch.utc_ms;
        if self.history.awaits_utc() {
            self.history.set_utc(batch.utc_ms);
        }
        self.work.begin_entry();
        // One more for taking the first task, so that it has the budget of a whole search.
        self.work.allot(bounds().steps_per_search + 1);
        self.run_backlog();
        self.work.allot(bounds().steps_for_commands);
        let before = self.before();
        self.run_timers();
        self.wound_scheduled();
        self.after_time(before, &SmolStr::default());
        let answers: Vec<Answer> =
            batch.commands.iter().map(|command| self.run_and_remember(command)).collect();
        // Unused budget of very many commands must not add up to more than an entry may take.
        self.work.keep_at_most(bounds().steps_per_search);
        self.work.allot(bounds().steps_for_reaping);
        let before = self.before();
        self.reap();
        self.wound_scheduled();
        self.after_time(before, &SmolStr::default());
        self.last_active = None;
        let effects = std::mem::take(&mut self.effects);
        self.chain_hash(&answers, &effects);
        Ok(Applied { answers, effects })
    }

    fn run_and_remember(&mut self, command: &Command) -> Answer {
        self.work.allot(bounds().steps_per_command + command.steps_of_further_locks());
        self.work.charge(1);
        let before = self.before();
        let answer = self.run(command);
        self.wound_scheduled();
        self.after(before, command, &answer);
        answer
    }

    /// Counts an entry without commands, such as a change of members.
    pub fn skip(&mut self, index: u64) -> Result<(), TableError> {
        self.step(index)?;
        self.chain_hash(&[], &[]);
        Ok(())
    }

    fn step(&mut self, index: u64) -> Result<(), TableError> {
        if index != self.applied + 1 {
            return Err(TableError::OutOfOrder { applied: self.applied, got: index });
        }
        self.applied = index;
        Ok(())
    }

    /// Index of the last entry that was applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Rules, tokens and quotas.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Whether an identity, or an unauthenticated caller, may use a session. True for unknown sessions: their commands are
    /// answered `SessionLost`.
    pub fn belongs_to(&self, session: SessionId, identity: Option<&str>) -> bool {
        self.sessions.get(&session).is_none_or(|alive| alive.identity.as_deref() == identity)
    }

    /// The cell time of the last entry.
    pub fn now(&self) -> CellTime {
        self.now
    }

    /// When the next entry is due without requests: at the end of a wait or lock-delay, or now if work of earlier entries or
    /// ended sessions is left. The leader then proposes a `Tick`.
    pub fn next_wake(&self) -> Option<CellTime> {
        if !self.ending.is_empty() || !self.forgetting.is_empty() || !self.backlog.is_empty() {
            return Some(self.now);
        }
        self.timers.get_min().map(|(due, _)| *due)
    }

    /// Checks that one more token can be issued. Each waiting request has one reserved, so granting it never fails.
    pub(crate) fn check_token_left(&self) -> Result<(), Refusal> {
        match self.last_token.0.saturating_add(self.waiters.len() as u64) < Token::MAX.0 {
            true => Ok(()),
            false => Err(no_token_left()),
        }
    }

    /// Adds a lock to the free ones if it has become free. False if it is not free.
    pub(crate) fn note_if_free(&mut self, name: &LockName) -> bool {
        let Some(lock) = self.locks.get_mut(name) else { return true };
        if lock.freed.is_some() {
            return true;
        }
        let is_free = lock.forget_if_free(self.free_next);
        if is_free {
            self.remember_free(name);
        }
        is_free
    }

    /// Adds a lock that has become free to the free ones with the next number, and forgets the oldest beyond the bound.
    pub(crate) fn remember_free(&mut self, name: &LockName) {
        self.access.remove(name, Counted::Lock);
        self.free.insert(self.free_next, name.clone());
        self.free_next += 1;
        if self.free.len() > limits::FREE_LOCKS_REMEMBERED_MAX {
            self.forget_oldest_free();
        }
    }

    fn forget_oldest_free(&mut self) {
        let Some((oldest, name)) = self.free.get_min().cloned() else { return };
        self.free.remove(&oldest);
        if let Some(lock) = self.locks.remove(&name) {
            self.forgotten = self.forgotten.max(lock.last_token);
        }
    }

    /// Changes a lock, creating it if needed. It no longer counts as free.
    pub(crate) fn open_lock<T>(&mut self, name: &LockName, change: impl FnOnce(&mut Lock) -> T) -> T {
        let mut was_free = true;
        let result = match self.locks.get_mut(name) {
            Some(lock) => {
                match lock.freed.take() {
                    Some(number) => drop(self.free.remove(&number)),
                    None => was_free = false,
                }
                change(lock)
            }
            None => {
                let mut lock = Lock::new(self.forgotten);
                let result = change(&mut lock);
                self.locks.insert(name.clone(), lock);
                result
            }
        };
        if was_free {
            self.access.add(name, Counted::Lock);
        }
        result
    }

    /// Remembers the answer to a settled request.
    pub(crate) fn settle(&mut self, session: SessionId, request: RequestId, answer: Remembered) {
        if self.sessions.contains_key(&session) {
            let before = self.remembered_bytes();
            self.requests.insert((session, request.clone()), answer);
            self.note_settled_since(session, request, before);
        }
    }

    /// Marks a remembered request as settled: from now on its answer can be forgotten.
    pub(crate) fn note_settled(&mut self, session: SessionId, request: RequestId) {
        let before = self.remembered_bytes();
        self.note_settled_since(session, request, before);
    }

    /// Forgets the oldest answers of the session beyond the bound. In a full table a new answer evicts old ones of at least
    /// its size, so that the table does not grow. A session with more than
    /// [`SETTLED_IN_FULL_TABLE`](crate::limits::SETTLED_IN_FULL_TABLE) also loses one more with each new answer, which makes
    /// room for others. `before` is the size of all answers before this one.
    fn note_settled_since(&mut self, session: SessionId, request: RequestId, before: u64) {
        let Some(owner) = self.sessions.get_mut(&session) else { return };
        self.settled.insert((session, owner.settled_next), request);
        owner.settled_next += 1;
        let mut remembered = owner.settled_next - owner.settled_first;
        if remembered > u64::from(limits::SETTLED_PER_SESSION_MAX) {
            self.forget_oldest_settled(session);
            remembered -= 1;
        }
        let mut extra = u64::from(remembered > u64::from(limits::SETTLED_IN_FULL_TABLE) + 1);
        while remembered > 1 && self.is_full() {
            if self.remembered_bytes() <= before {
                if extra == 0 {
                    break;
                }
                extra -= 1;
            }
            self.work.charge(1);
            self.forget_oldest_settled(session);
            remembered -= 1;
        }
    }

    /// The size of all remembered answers in logical bytes.
    fn remembered_bytes(&self) -> u64 {
        self.requests.bytes() + self.settled.bytes()
    }

    fn forget_oldest_settled(&mut self, session: SessionId) {
        let Some(owner) = self.sessions.get_mut(&session) else { return };
        let oldest = (session, owner.settled_first);
        owner.settled_first += 1;
        if let Some(request) = self.settled.remove(&oldest) {
            self.requests.remove(&(session, request));
        }
    }
}

/// The refusal when tokens run out: no token is issued twice, and none that JSON clients could not represent exactly (S1).
pub(crate) fn no_token_left() -> Refusal {
    Refusal::limit(format!(
        "the cell has issued its tokens up to {}, its limit: start a new cell, and reset the tokens that its gates have stored",
        Token::MAX
    ))
}

impl PartialEq for LockTable {
    fn eq(&self, other: &LockTable) -> bool {
        // `effects`, `to_wound`, `last_active`, `utc_ms`, `work` and `supported` are not part of the state. `hash` depends on the
        // history of the table: different histories can lead to equal tables.
        let LockTable {
            applied,
            now,
            last_token,
            last_ticket,
            cell_version,
            supported: _,
            sessions,
            locks,
            grants,
            waiters,
            queues,
            candidates,
            waits,
            requests,
            settled,
            timers,
            ending,
            ending_next,
            forgetting,
            backlog,
            work: _,
            free,
            free_next,
            forgotten,
            values,
            removed_version,
            scopes,
            limiters,
            limiters_due,
            to_wound: _,
            last_active: _,
            utc_ms: _,
            history,
            access,
            state_bytes_max,
            hash: _,
            cursor,
            effects: _,
        } = self;
        *applied == other.applied
            && *now == other.now
            && *last_token == other.last_token
            && *last_ticket == other.last_ticket
            && *cell_version == other.cell_version
            && *sessions == other.sessions
            && *locks == other.locks
            && *grants == other.grants
            && *waiters == other.waiters
            && *queues == other.queues
            && *candidates == other.candidates
            && *waits == other.waits
            && *requests == other.requests
            && *settled == other.settled
            && *timers == other.timers
            && *ending == other.ending
            && *ending_next == other.ending_next
            && *forgetting == other.forgetting
            && *backlog == other.backlog
            && *free == other.free
            && *free_next == other.free_next
            && *forgotten == other.forgotten
            && *values == other.values
            && *removed_version == other.removed_version
            && *scopes == other.scopes
            && *limiters == other.limiters
            && *limiters_due == other.limiters_due
            && *history == other.history
            && *access == other.access
            && *state_bytes_max == other.state_bytes_max
            && *cursor == other.cursor
    }
}
