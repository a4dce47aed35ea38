//! Work budgets (S11): the work that one entry may do. Work beyond the budget continues in the next entries as a [`Task`],
//! in the order in which it was deferred. ADR 0018 gives the reasons.
//!
//! A step took 0.1 to 0.5 microseconds of a release build. Steps are counted, never measured, so that every node defers
//! the same work at the same place of the log.

use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::{LockName, SessionId, Ticket, Token};
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::scope::ScopeNo;
use crate::table::LockTable;

/// Steps of one lock granted, freed, or left by a waiter: the lock and all its indexes. Also of a session that ends.
pub(crate) const LOCK_STEPS: u64 = 4;

/// Step counter of an entry. Not part of the state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// Steps left before work is deferred. Negative if the last piece of work took more than was left; the budgets of later
    /// commands of the entry make up for it.
    left: i64,
    /// Steps spent in this entry.
    spent: u64,
}

impl Work {
    pub(crate) fn begin_entry(&mut self) {
        *self = Work::default();
    }

    /// Adds to the budget.
    pub(crate) fn allot(&mut self, steps: u64) {
        self.left = self.left.saturating_add_unsigned(steps);
    }

    /// Caps what is left, and cancels what was overspent.
    pub(crate) fn keep_at_most(&mut self, steps: u64) {
        self.left = self.left.clamp(0, i64::try_from(steps).unwrap_or(i64::MAX));
    }

    pub(crate) fn charge(&mut self, steps: u64) {
        self.left = self.left.saturating_sub_unsigned(steps);
        self.spent = self.spent.saturating_add(steps);
    }

    pub(crate) fn left(&self) -> u64 {
        match mutation::is_on(Mutation::IgnoreBudget) {
            true => u64::MAX,
            false => u64::try_from(self.left).unwrap_or(0),
        }
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.left() == 0
    }

    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }
}

/// Work that did not fit into its entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Grant a lock to the requests at the head of its queue that fit.
    Admit(LockName),
    /// Take a lock from all holders with a token below this one.
    Force { lock: LockName, below: Token, reason: SmolStr },
    /// Check whether a waiting request closed a cycle.
    Search(Ticket),
    /// Wound a scope that waits while it holds what an older scope waits for.
    Wound(ScopeNo),
    /// Count the usage of namespaces.
    Count,
    /// End a cancelled wait. It is not granted meanwhile.
    CancelWait(Ticket),
    /// Free the remaining locks of a grant whose request was cancelled.
    CancelGrant(SessionId, Token),
}

/// Identity of a task: there is at most one task with each key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TaskKey {
    Admit(LockName),
    Force(LockName),
    Search(Ticket),
    Wound(ScopeNo),
    Count,
    CancelWait(Ticket),
    CancelGrant(Token),
}

impl Task {
    fn key(&self) -> TaskKey {
        match self {
            Task::Admit(lock) => TaskKey::Admit(lock.clone()),
            Task::Force { lock, .. } => TaskKey::Force(lock.clone()),
            Task::Search(ticket) => TaskKey::Search(*ticket),
            Task::Wound(scope) => TaskKey::Wound(*scope),
            Task::Count => TaskKey::Count,
            Task::CancelWait(ticket) => TaskKey::CancelWait(*ticket),
            Task::CancelGrant(_, token) => TaskKey::CancelGrant(*token),
        }
    }
}

/// Deferred work, oldest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Backlog {
    pub(crate) tasks: OrdMap<u64, Task>,
    pub(crate) next: u64,
    // Invariant: the number of each task in `tasks`.
    numbers: OrdMap<TaskKey, u64>,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn push(&mut self, task: Task) {
        let number = match self.numbers.get(&task.key()) {
            Some(number) => *number,
            None => {
                self.next += 1;
                self.next
            }
        };
        self.put(number, task);
    }

    /// Stores a task under a number. True if the number or the key was taken.
    pub(crate) fn put(&mut self, number: u64, task: Task) -> bool {
        let known = self.numbers.insert(task.key(), number).is_some();
        self.tasks.insert(number, task).is_some() || known
    }

    fn first(&self) -> Option<u64> {
        self.tasks.get_min().map(|(number, _)| *number)
    }

    fn take(&mut self, number: u64) -> Option<Task> {
        let task = self.tasks.remove(&number)?;
        self.numbers.remove(&task.key());
        Some(task)
    }

    pub(crate) fn has_admit(&self, lock: &LockName) -> bool {
        self.numbers.contains_key(&TaskKey::Admit(lock.clone()))
    }

    pub(crate) fn has_cancel(&self, ticket: Ticket) -> bool {
        !self.is_empty() && self.numbers.contains_key(&TaskKey::CancelWait(ticket))
    }
}

impl LockTable {
    /// Steps that the last entry took for admission, deadlock searches, wounding, reaping and everything else whose cost
    /// depends on the size of the table.
    pub fn steps(&self) -> u64 {
        self.work.spent()
    }

    /// Whether deferred work is left.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Continues deferred work. A task that is deferred again goes to the end of the backlog and waits for the next entry,
    /// so that no task starves another.
    pub(crate) fn run_backlog(&mut self) {
        let last = self.backlog.next;
        while !self.work.is_exhausted()
            && let Some(number) = self.backlog.first().filter(|number| *number <= last)
            && let Some(task) = self.backlog.take(number)
        {
            self.work.charge(1);
            let before = self.before();
            let mut forced = SmolStr::default();
            match task {
                Task::Admit(lock) => self.admit(std::slice::from_ref(&lock)),
                Task::Force { lock, below, reason } => {
                    self.take_by_force(&lock, below, &reason);
                    forced = reason;
                }
                Task::Search(ticket) => {
                    if !self.resume_search(ticket) {
                        // The next entry starts with it, with a budget that suffices for any search.
                        self.backlog.put(number, Task::Search(ticket));
                        return;
                    }
                }
                Task::Wound(scope) => self.wound_if_blocking(scope),
                Task::Count => self.count_more(),
                Task::CancelWait(ticket) => self.end_wait(ticket, Refusal::Cancelled),
                Task::CancelGrant(session, token) => self.cancel_grant(session, token),
            }
            self.wound_scheduled();
            self.after_time(before, &forced);
        }
    }
}

/// A refusal of a request that takes too many steps.
pub(crate) fn too_expensive(what: &str) -> Refusal {
    Refusal::limit(format!("{what} takes too much work because too many requests wait: try again later"))
}
