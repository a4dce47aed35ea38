//! What the tasks of a node share. They all run on one thread; the locks are there for the compiler and for
//! callers of the embedded engine, and are never held across an await.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::{Command, Grant, LockTable, SessionId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::callers::{Caller, Callers};
use crate::console_seats::ConsoleSeats;
use crate::expiry::Expiry;
use crate::hourly_stats::HourlyStats;
use crate::leader_term::LeaderTerm;
use crate::metrics::Metrics;
use crate::observers::Observers;
use crate::orphans::Orphans;
use crate::propose::CommandQueue;
use crate::slow::Slow;
use crate::trace;

/// The state of a node: the lock table and what the tasks around it know. It starts no task; docs: ARCHITECTURE.md,
/// "Who owns what".
#[derive(Debug)]
pub struct Shared {
    /// Drawn anew by each process: tells its own proposals from those of others and of former lives.
    pub proposer_id: u64,
    /// When the process began.
    pub started: Instant,
    /// Who is waiting for what.
    pub callers: Callers,
    /// The queue in front of the log.
    pub queue: CommandQueue,
    /// Whether this node leads.
    pub leader_term: LeaderTerm,
    /// Session timers.
    pub expiry: Expiry,
    /// Waiting requests that nobody will come back for.
    pub orphans: Orphans,
    /// Who wants to know when a lock changes hands.
    pub observers: Observers,
    /// What can be measured.
    pub metrics: Metrics,
    /// The last hour in figures.
    pub hourly_stats: HourlyStats,
    /// Which waits are worth a line in the log.
    pub slow: Slow,
    /// Seats for pages of the console that watch this node.
    pub console_seats: Arc<ConsoleSeats>,
    /// Something changed that the timer task has to look at.
    pub timers_changed: Notify,
    /// A tick is on its way through the log.
    ticking: AtomicBool,
    table: Mutex<LockTable>,
}

impl Shared {
    /// A node with this table.
    pub fn new(proposer_id: u64, table: LockTable, metrics: Metrics, slow: Slow) -> Shared {
        Shared {
            proposer_id,
            started: Instant::now(),
            callers: Callers::default(),
            queue: CommandQueue::default(),
            leader_term: LeaderTerm::default(),
            expiry: Expiry::default(),
            orphans: Orphans::default(),
            observers: Observers::default(),
            metrics,
            slow,
            hourly_stats: HourlyStats::default(),
            console_seats: Arc::default(),
            timers_changed: Notify::new(),
            ticking: AtomicBool::new(false),
            table: Mutex::new(table),
        }
    }

    /// The lock table, to read it or to apply an entry.
    pub fn table(&self) -> MutexGuard<'_, LockTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command: the one way to the log. A client's is refused if this node does not lead.
    pub fn submit(&self, command: Command, caller: Caller) {
        if matches!(caller, Caller::Nobody) {
            return self.queue.push(command, caller);
        }
        match self.leader_term.is_open() {
            Ok(()) => {
                let caller = trace::follow(&command, caller);
                self.queue.push(command, caller);
            }
            Err(failure) => drop(caller.deliver(Err(failure))),
        }
    }

    /// Proposes a tick, unless one is under way.
    pub fn tick(&self) {
        if !self.ticking.swap(true, Ordering::Relaxed) {
            self.submit(Command::Tick, Caller::Nobody);
        }
    }

    /// A tick was applied. After a change of leader nobody knows what became of one.
    pub fn no_tick_under_way(&self) {
        self.ticking.store(false, Ordering::Relaxed);
    }

    /// A grant that nobody is there to take must not stay: it would be a ghost holder.
    pub(crate) fn give_back(&self, session: SessionId, grant: &Grant) {
        for lock in grant.locks.as_slice() {
            let command = Command::Release { session, lock: lock.clone(), token: grant.token, forget: true };
            self.submit(command, Caller::Nobody);
        }
    }
}
