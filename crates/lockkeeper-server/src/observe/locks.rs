//! Locks as the console shows them: like those of `/v1/lock`, but without the sessions' ids, which are for their
//! owners alone.

use lockkeeper_core::history::ShortSession;
use lockkeeper_core::{LockName, LockView};
use serde::Serialize;

use super::Look;
use super::history::LockHistory;
use crate::failure::Failure;

/// Locks in a page.
const PAGE: usize = 50;
/// Holders and waiters of each lock in a page.
const SHOWN_IN_PAGE: usize = 3;
/// Holders and waiters of one lock.
const SHOWN_OF_ONE: usize = 200;

/// A page of locks in use, in the order of their names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockList {
    /// The locks.
    pub locks: Vec<Lock>,
    /// There are more behind the last.
    pub more: bool,
    /// How many are in use in the cell.
    pub total: u64,
}

/// One lock with its history.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockInFull {
    /// Who holds it and who waits.
    pub lock: Lock,
    /// What happened to it.
    pub history: LockHistory,
}

/// A lock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lock {
    lock: String,
    capacity: u32,
    last_token: u64,
    holders: Vec<Holder>,
    /// There are more holders than these.
    more_holders: bool,
    queue: Vec<Waiter>,
    waiting: u32,
    closed_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Holder {
    session: String,
    token: u64,
    mode: &'static str,
    permits: u32,
    owner: String,
    held_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Waiter {
    session: String,
    position: u32,
    mode: &'static str,
    owner: String,
    waited_ms: u64,
}

impl Lock {
    /// Out of a view with one more than so many holders and waiters, which tells whether there are more.
    fn shown(mut view: LockView, limit: usize) -> Lock {
        let more_holders = view.holders.len() > limit;
        view.holders.truncate(limit);
        view.queue.truncate(limit);
        Lock {
            more_holders,
            lock: view.name.to_string(),
            capacity: view.capacity,
            last_token: view.last_token.0,
            holders: view
                .holders
                .into_iter()
                .map(|holder| Holder {
                    session: ShortSession::from(holder.session).to_string(),
                    token: holder.token.0,
                    mode: holder.mode.as_str(),
                    permits: holder.permits,
                    owner: holder.owner.to_string(),
                    held_ms: holder.held_ms,
                })
                .collect(),
            queue: view
                .queue
                .into_iter()
                .map(|waiter| Waiter {
                    session: ShortSession::from(waiter.session).to_string(),
                    position: waiter.position,
                    mode: waiter.mode.as_str(),
                    owner: waiter.owner.to_string(),
                    waited_ms: waiter.waited_ms,
                })
                .collect(),
            waiting: view.waiting,
            closed_ms: view.closed_ms,
        }
    }
}

impl Look<'_> {
    /// A page of locks whose names begin with `prefix`, behind the name `after`.
    pub fn locks(&self, prefix: &str, after: &str) -> LockList {
        let mut locks: Vec<Lock> = self
            .table
            .lock_views(prefix, after, self.now, SHOWN_IN_PAGE + 1)
            .take(PAGE + 1)
            .map(|view| Lock::shown(view, SHOWN_IN_PAGE))
            .collect();
        let more = locks.len() > PAGE;
        locks.truncate(PAGE);
        LockList { locks, more, total: self.table.counts().locks }
    }

    /// One lock with its history.
    pub fn lock_in_full(&self, name: &str) -> Result<LockInFull, Failure> {
        let history = self.history(name, 0)?;
        let view = self.table.lock_view(&LockName::from(name), self.now, SHOWN_OF_ONE + 1);
        Ok(LockInFull { lock: Lock::shown(view, SHOWN_OF_ONE), history })
    }
}
