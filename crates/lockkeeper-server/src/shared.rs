//! What the tasks of a node share. They all run on one thread; the locks are there for the compiler and for
//! callers of the embedded engine, and are never held across an await.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::{Applied, Batch, CellTime, Command, Effect, Freed, LockTable, Refusal, Reply};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::callers::{Caller, Callers, Told};
use crate::console_seats::ConsoleSeats;
use crate::expiry::Expiry;
use crate::failure::Failure;
use crate::hourly_stats::HourlyStats;
use crate::leader_term::LeaderTerm;
use crate::metrics::Metrics;
use crate::observers::Observers;
use crate::orphans::Orphans;
use crate::proposer::Proposer;
use crate::slow::Slow;
use crate::trace;

/// The heart of a node and everything around it.
#[derive(Debug)]
pub struct Shared {
    /// Drawn anew by each process: tells its own proposals from those of others and of former lives.
    pub proposer_id: u64,
    /// When the process began.
    pub started: Instant,
    /// Who is waiting for what.
    pub callers: Callers,
    /// The queue in front of the log.
    pub proposer: Proposer,
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
            proposer: Proposer::default(),
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

    /// Queues a command, if this node leads.
    pub fn submit(&self, command: Command, caller: Caller) {
        match self.leader_term.is_open() {
            Ok(()) => {
                let caller = trace::follow(&command, caller);
                self.proposer.submit(command, caller);
            }
            Err(failure) => {
                caller.deliver(Err(failure));
            }
        }
    }

    /// Proposes a tick, unless one is under way.
    pub fn tick(&self) {
        if !self.ticking.swap(true, Ordering::Relaxed) {
            self.proposer.submit(Command::Tick, Caller::Nobody);
        }
    }

    /// After a change of leader nobody knows what became of a tick.
    pub fn no_tick_under_way(&self) {
        self.ticking.store(false, Ordering::Relaxed);
    }

    /// Turns what follows from an entry into replies, pushes and timers. Runs inside the apply, so that a
    /// caller is registered under its ticket before any later entry can grant it.
    pub fn dispatch(
        &self,
        sequence: Option<u64>,
        batch: &Batch,
        applied: Applied,
        wake_before: Option<CellTime>,
    ) {
        let callers = sequence.and_then(|sequence| self.callers.take(sequence)).unwrap_or_default();
        let mut callers = callers.into_iter();
        for (command, answer) in batch.commands.iter().zip(applied.answers) {
            self.note(batch.now, command, &answer);
            let mut caller = callers.next().unwrap_or(Caller::Nobody);
            if let (Some((connection, session)), Ok(Reply::SessionOpened { .. })) = (caller.opens(), &answer)
                && !connection.is_closed()
            {
                self.callers.attach(session, connection);
                connection.speaks_for(session);
            }
            if let (Caller::Traced(traced), Command::Acquire(request), Ok(Reply::Queued { .. })) =
                (&mut caller, command, &answer)
            {
                traced.waits(&self.table(), batch.now, request);
            }
            let undelivered = match (command, &answer) {
                (Command::Acquire(request), Ok(Reply::Granted(grant))) if request.request.is_none() => {
                    Some((request.session, grant.clone()))
                }
                _ => None,
            };
            if !self.callers.answer(caller, answer)
                && let Some((session, grant)) = undelivered
            {
                self.give_back(session, &grant);
            }
        }
        for effect in applied.effects {
            self.carry_out(batch.now, effect);
        }
        let wake = self.table().next_entry_due();
        // Only an earlier moment needs a new look; a later one is seen when the old moment comes.
        if wake.is_some_and(|wake| wake <= batch.now || wake_before.is_none_or(|before| wake < before)) {
            self.timers_changed.notify_one();
        }
    }

    fn note(&self, now: CellTime, command: &Command, answer: &lockkeeper_core::Answer) {
        match (command, answer) {
            (command, Ok(Reply::SessionOpened { ttl_ms, .. })) if self.leader_term.term().is_some() => {
                if let Some(session) = command.opens() {
                    self.expiry.start(session, *ttl_ms);
                    self.timers_changed.notify_one();
                }
            }
            (Command::Tick, _) => self.ticking.store(false, Ordering::Relaxed),
            (Command::Acquire(_), Ok(Reply::Granted(grant))) => {
                self.metrics.granted_at_once(grant.mode);
                self.hourly_stats.granted(now, 0);
                self.observers.changed(grant.locks.as_slice());
            }
            (Command::Acquire(request), Err(why)) => self.metrics.refused_at_once(request.mode, why),
            (Command::TakeRate(_), Ok(Reply::Rate { allowed: false, .. })) => {
                self.metrics.no_permit_of_a_rate();
            }
            (Command::PutValue { .. } | Command::DeleteValue { .. }, Err(Refusal::StaleToken { .. })) => {
                self.metrics.stale_write_refused();
            }
            _ => {}
        }
    }

    /// A grant that nobody is there to take must not stay: it would be a ghost holder.
    pub(crate) fn give_back(&self, session: lockkeeper_core::SessionId, grant: &lockkeeper_core::Grant) {
        for lock in grant.locks.as_slice() {
            let command = Command::Release { session, lock: lock.clone(), token: grant.token, forget: true };
            self.proposer.submit(command, Caller::Nobody);
        }
    }

    fn carry_out(&self, now: CellTime, effect: Effect) {
        match effect {
            Effect::Granted { session, ticket, request, grant, waited_ms } => {
                self.metrics.granted_after(grant.mode, waited_ms);
                self.hourly_stats.granted(now, waited_ms);
                if self.slow.is_slow(waited_ms) && self.leader_term.term().is_some() {
                    self.metrics.slow_acquires.inc();
                    let owner = self.table().session(session).map(|alive| alive.owner.clone());
                    self.slow.say(now, session, &owner.unwrap_or_default(), &grant, waited_ms);
                }
                self.observers.changed(grant.locks.as_slice());
                let given = grant.clone();
                match self.callers.wait_over(ticket, Ok(Reply::Granted(grant))) {
                    Told::Refused => self.give_back(session, &given),
                    Told::Gone if request.is_none() => self.give_back(session, &given),
                    Told::Gone | Told::Yes => {}
                }
            }
            Effect::Ended { ticket, refusal, mode, waited_ms, .. } => {
                self.metrics.refused_after(mode, &refusal, waited_ms);
                self.callers.wait_over(ticket, Err(Failure::Refused(refusal)));
            }
            Effect::Freed { session, lock, token, why, held_ms } => {
                self.metrics.freed(why, held_ms);
                let lost = matches!(why, Freed::Forced | Freed::SessionExpired | Freed::Wounded);
                self.hourly_stats.freed(now, held_ms, lost);
                self.observers.changed(std::slice::from_ref(&lock));
                let taken = match why {
                    Freed::Forced => Some("forced"),
                    Freed::Wounded => Some("wounded"),
                    Freed::Released | Freed::SessionClosed | Freed::SessionExpired | Freed::Cancelled => None,
                };
                if let Some(why) = taken
                    && let Some(connection) = self.callers.attached(session)
                {
                    connection.grant_lost(session, &lock, token, why);
                }
            }
            Effect::SessionEnded { session, why } => {
                self.expiry.forget(session);
                self.metrics.session_ended(why);
                if let Some(connection) = self.callers.detach(session) {
                    connection.session_ended(session, why);
                }
            }
            Effect::ExpiryStale { session } => {
                let ttl_ms = self.table().session(session).map(|alive| alive.ttl_ms);
                if let (Some(ttl_ms), Some(_)) = (ttl_ms, self.leader_term.term()) {
                    self.expiry.start(session, ttl_ms);
                    self.timers_changed.notify_one();
                }
            }
        }
    }
}
