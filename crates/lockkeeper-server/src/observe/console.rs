//! Views for the console only: pages of locks and elections, one lock with its history, and the health of the cell.

use lockkeeper_api::election::Leader;
use lockkeeper_api::history::{LeaderChange, LockHistory};
use lockkeeper_api::lock::LockState;
use lockkeeper_api::status::Status;
use lockkeeper_api::top::Top;
use lockkeeper_core::access::ELECTION_PREFIX;
use lockkeeper_core::{LockName, LockView};
use serde::Serialize;

use super::disk::Disk;
use crate::api::page_room::{PageRoom, page};
use crate::api::{Api, View};

/// Locks or elections in a page.
const PAGE: usize = 50;
/// Holders and waiters of each lock in a page.
const SHOWN_IN_PAGE: usize = 3;
/// Holders and waiters of one lock.
const SHOWN_OF_ONE: usize = 200;
/// Candidates shown of each election.
const CANDIDATES: usize = 5;
/// Leader changes shown.
const LEADER_CHANGES: usize = 50;
/// Locks shown in each list of the cell's health.
const TOP_LOCKS: usize = 5;

/// A page of the locks in use, in order of name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockList {
    locks: Vec<ShownLock>,
    /// Whether more locks follow.
    more: bool,
    /// Number of locks in use in the cell.
    total: u64,
}

/// A lock with its first holders and waiters.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ShownLock {
    #[serde(flatten)]
    lock: LockState,
    /// Whether there are more holders than these.
    more_holders: bool,
}

/// One lock with its history.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockInFull {
    lock: ShownLock,
    history: LockHistory,
}

/// A page of elections, in order of name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ElectionList {
    elections: Vec<ShownElection>,
    /// Whether more elections follow.
    more: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ShownElection {
    election: String,
    lock: String,
    leader: Option<ShownLeader>,
    /// Number of candidates that wait to lead.
    candidates: u32,
    /// The first candidates, in order.
    next: Vec<Candidate>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ShownLeader {
    #[serde(flatten)]
    leader: Leader,
    held_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Candidate {
    owner: String,
    value: String,
    waited_ms: u64,
}

/// The health of the cell, as this node sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellHealth {
    #[serde(flatten)]
    status: Status,
    locks: u64,
    /// Commands that wait for the next log entry.
    queued: u64,
    /// Null if the node runs in memory.
    disk: Option<Disk>,
    elections: Vec<LeaderChange>,
    /// Without lock names for callers that may not read all locks.
    top: Top,
}

impl ShownLock {
    /// Takes a view with up to `limit` + 1 holders and waiters; the extra one tells whether there are more.
    fn new(mut view: LockView, limit: usize) -> ShownLock {
        let more_holders = view.holders.len() > limit;
        view.holders.truncate(limit);
        view.queue.truncate(limit);
        ShownLock { lock: view.into(), more_holders }
    }
}

impl ShownElection {
    fn new(view: LockView) -> ShownElection {
        let leader = view.holders.first().map(|holder| ShownLeader {
            leader: Leader {
                owner: holder.owner.to_string(),
                value: holder.value.to_string(),
                epoch: holder.token.0,
            },
            held_ms: holder.held_ms,
        });
        let candidates = view.queue.iter().map(|waiter| Candidate {
            owner: waiter.owner.to_string(),
            value: waiter.value.to_string(),
            waited_ms: waiter.waited_ms,
        });
        ShownElection {
            election: view.name.strip_prefix(ELECTION_PREFIX).unwrap_or(&view.name).to_owned(),
            lock: view.name.to_string(),
            leader,
            candidates: view.waiting,
            next: candidates.collect(),
        }
    }
}

impl View<'_> {
    /// Returns a page of the locks whose names start with `prefix`, after the name `after`.
    pub fn lock_list(&self, prefix: &str, after: &str) -> LockList {
        let views = self.table.lock_views(prefix, after, self.now, SHOWN_IN_PAGE + 1);
        let (views, more) = page(views, PAGE);
        let locks = views.into_iter().map(|view| ShownLock::new(view, SHOWN_IN_PAGE)).collect();
        LockList { locks, more, total: self.table.counts().locks }
    }

    /// Returns one lock with its history.
    pub fn lock_in_full(&self, name: &LockName) -> LockInFull {
        let mut view = self.table.lock_view(name, self.now, SHOWN_OF_ONE + 1);
        let found = view.holders.len();
        PageRoom::default().shorten(&mut view);
        let is_shortened = view.holders.len() < found;
        let mut lock = ShownLock::new(view, SHOWN_OF_ONE);
        lock.more_holders |= is_shortened;
        LockInFull { lock, history: self.history(name, 0) }
    }

    /// Returns a page of elections after the one with this name.
    pub fn elections(&self, after: &str) -> ElectionList {
        let after = if after.is_empty() { String::new() } else { format!("{ELECTION_PREFIX}{after}") };
        let views = self.table.lock_views(ELECTION_PREFIX, &after, self.now, CANDIDATES);
        let (views, more) = page(views, PAGE);
        let elections = views.into_iter().map(ShownElection::new).collect();
        ElectionList { elections, more }
    }
}

impl Api {
    /// Returns the health of the cell. The caller passes the disk usage, because reading it blocks.
    pub fn cell_health(&self, disk: Option<Disk>) -> CellHealth {
        let status = self.status();
        let shared = self.shared();
        let names_locks = self.can_read_all();
        let view = self.local_view();
        let mut top = view.top(&shared.hourly_stats, TOP_LOCKS);
        if !names_locks {
            top.contended.clear();
            top.longest_held.clear();
        }
        CellHealth {
            locks: view.table.counts().locks,
            queued: shared.queue.queued() as u64,
            disk,
            elections: view.audit(LEADER_CHANGES).leaders,
            top,
            status,
        }
    }
}
