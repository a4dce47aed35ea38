//! The state that the tasks of a node share. All tasks run on one thread; the mutexes exist for the compiler and for
//! callers of the embedded engine, and are never held across an await.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::{Command, LockTable};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::effects::callers::{Caller, Callers};
use crate::effects::observers::Observers;
use crate::effects::undelivered::GivenBack;
use crate::leader::expiry::Expiry;
use crate::leader::orphans::Orphans;
use crate::leader::term::LeaderTerm;
use crate::limits::console_seats::ConsoleSeats;
use crate::metrics::Metrics;
use crate::metrics::hourly_stats::HourlyStats;
use crate::metrics::slow_acquires::SlowAcquireLog;
use crate::propose::CommandQueue;
use crate::trace;

/// The state of a node: the lock table and what the tasks around it keep. It starts no task. ARCHITECTURE.md draws the
/// ownership, at "lockkeeper-server".
#[derive(Debug)]
pub struct Shared {
    /// Random ID of this process. Distinguishes its proposals from those of other nodes and of earlier runs.
    pub proposer_id: u64,
    /// When the process started.
    pub started: Instant,
    /// Callers that wait for an answer.
    pub callers: Callers,
    /// The queue in front of the log.
    pub queue: CommandQueue,
    /// The leader's term of this node, if it leads.
    pub leader_term: LeaderTerm,
    /// Session timers.
    pub expiry: Expiry,
    /// Waiting requests whose caller can no longer return.
    pub orphans: Orphans,
    /// Grants without a receiver, until they are released.
    pub(crate) given_back: GivenBack,
    /// Observers of elections.
    pub observers: Observers,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// Statistics of the last hour.
    pub hourly_stats: HourlyStats,
    /// Logs slow acquires.
    pub slow_acquire_log: SlowAcquireLog,
    /// Limits the console pages that watch this node.
    pub console_seats: Arc<ConsoleSeats>,
    /// Wakes the timer task after a change.
    pub timers_changed: Notify,
    /// A tick is in flight.
    ticking: AtomicBool,
    table: Mutex<LockTable>,
}

impl Shared {
    /// Creates the state of a node with this table.
    pub fn new(
        proposer_id: u64,
        table: LockTable,
        metrics: Metrics,
        slow_acquire_log: SlowAcquireLog,
    ) -> Shared {
        Shared {
            proposer_id,
            started: Instant::now(),
            callers: Callers::default(),
            queue: CommandQueue::default(),
            leader_term: LeaderTerm::default(),
            expiry: Expiry::default(),
            orphans: Orphans::default(),
            given_back: GivenBack::default(),
            observers: Observers::default(),
            metrics,
            slow_acquire_log,
            hourly_stats: HourlyStats::default(),
            console_seats: Arc::default(),
            timers_changed: Notify::new(),
            ticking: AtomicBool::new(false),
            table: Mutex::new(table),
        }
    }

    /// Locks the lock table, to read it or to apply an entry.
    pub fn table(&self) -> MutexGuard<'_, LockTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command for the log; there is no other way to the log. A client's command is refused if this node does not
    /// lead.
    pub fn submit(&self, command: Command, caller: Caller) {
        if matches!(caller, Caller::Nobody) {
            return self.queue.push(command, caller);
        }
        match self.leader_term.is_open() {
            Ok(()) => {
                let caller = trace::trace_request(&command, caller);
                self.queue.push(command, caller);
            }
            Err(failure) => drop(caller.deliver(Err(failure))),
        }
    }

    /// Proposes a tick, unless one is in flight.
    pub fn tick(&self) {
        if !self.ticking.swap(true, Ordering::Relaxed) {
            self.submit(Command::Tick, Caller::Nobody);
        }
    }

    /// Notes that no tick is in flight: it was applied, or its outcome is unknown after a change of leader.
    pub fn tick_finished(&self) {
        self.ticking.store(false, Ordering::Relaxed);
    }
}
