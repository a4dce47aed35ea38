//! Waiting requests: one queue for each lock, in the order of tickets, without overtaking (S7).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::command::{Locks, Mode};
use crate::effect::{Effect, Grant};
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket};
use crate::lock::Held;
use crate::mutation::{self, Mutation};
use crate::quota::Counted;
use crate::refusal::Refusal;
use crate::scope::{OptionalAttributes, scope_of};
use crate::session::Remembered;
use crate::table::{LockTable, Timer};
use crate::work::{LOCK_STEPS, Task};

/// A request that waits for one lock, or for several at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub(crate) session: SessionId,
    pub(crate) request: Option<RequestId>,
    pub(crate) locks: Locks,
    pub(crate) mode: Mode,
    /// Units that it takes of each lock.
    pub(crate) units: u32,
    pub(crate) since: CellTime,
    pub(crate) until: Option<CellTime>,
    pub(crate) lock_delay_ms: u64,
    pub(crate) extra: Option<Arc<OptionalAttributes>>,
}

impl Waiter {
    /// Its key among the candidates, if it waits for one lock and has a value.
    pub(crate) fn candidate(&self, ticket: Ticket) -> Option<(LockName, SmolStr, Ticket)> {
        let [name] = self.locks.as_slice() else { return None };
        let value = self.extra.as_ref()?.value.clone()?;
        Some((name.clone(), value, ticket))
    }
}

impl LockTable {
    /// The ticket at the head of a lock's queue.
    pub(crate) fn head(&self, lock: &LockName) -> Option<Ticket> {
        if self.locks.get(lock)?.waiting == 0 {
            return None;
        }
        if mutation::is_on(Mutation::Overtake) {
            return self.queues.get_prev(&(lock.clone(), Ticket(u64::MAX))).map(|last| last.1);
        }
        let first = self.queues.get_next(&(lock.clone(), Ticket::default()))?;
        (first.0 == *lock).then_some(first.1)
    }

    /// Appends a request to the queue of each of its locks.
    pub(crate) fn enqueue(&mut self, waiter: Waiter) -> Ticket {
        self.last_ticket.0 += 1;
        let ticket = self.last_ticket;
        for name in waiter.locks.as_slice() {
            self.queues.insert((name.clone(), ticket));
            self.access.add(name, Counted::Waiter);
            if let Some(lock) = self.locks.get_mut(name) {
                lock.waiting += 1;
            }
        }
        if let Some(candidate) = waiter.candidate(ticket) {
            self.candidates.insert(candidate);
        }
        self.waits.insert((waiter.session, ticket));
        if let Some(session) = self.sessions.get_mut(&waiter.session) {
            session.waits += 1;
        }
        if let Some(until) = waiter.until {
            self.timers.insert((until, Timer::WaitEnds(ticket)));
        }
        if let Some(request) = &waiter.request {
            self.requests.insert((waiter.session, request.clone()), Remembered::Waiting(ticket));
        }
        if let Some(extra) = &waiter.extra {
            self.scopes.note_wait(extra, ticket, waiter.locks.as_slice());
        }
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Removes a request from all its queues. The caller then admits the requests behind it.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.work.charge(LOCK_STEPS * waiter.locks.as_slice().len() as u64);
        for name in waiter.locks.as_slice() {
            self.queues.remove(&(name.clone(), ticket));
            self.access.remove(name, Counted::Waiter);
            if let Some(lock) = self.locks.get_mut(name) {
                lock.waiting -= 1;
            }
        }
        if let Some(candidate) = waiter.candidate(ticket) {
            self.candidates.remove(&candidate);
        }
        self.waits.remove(&(waiter.session, ticket));
        if let Some(session) = self.sessions.get_mut(&waiter.session) {
            session.waits -= 1;
        }
        if let Some(until) = waiter.until {
            self.timers.remove(&(until, Timer::WaitEnds(ticket)));
        }
        if let Some(extra) = &waiter.extra {
            self.scopes.forget_wait(extra, ticket, waiter.locks.as_slice());
        }
        Some(waiter)
    }

    /// Ends a wait without a grant and admits the requests behind it.
    pub(crate) fn end_wait(&mut self, ticket: Ticket, refusal: Refusal) {
        let Some(waiter) = self.leave(ticket) else { return };
        if let Some(request) = &waiter.request {
            self.settle(waiter.session, request.clone(), Remembered::Refused(refusal.clone()));
        }
        if let Some(scope) = scope_of(waiter.extra.as_ref()) {
            self.note_if_idle(scope);
        }
        self.effects.push(Effect::Ended {
            session: waiter.session,
            ticket,
            request: waiter.request,
            refusal,
            mode: waiter.mode,
            waited_ms: self.now.ms_since(waiter.since),
        });
        self.admit(waiter.locks.as_slice());
    }

    /// Grants the waiting requests that can be admitted, in the order of tickets. Called with the locks whose queue or room
    /// may have changed. An admitted request leaves the queues of all its locks, so the requests behind it are next.
    ///
    /// When the budget of the entry is spent, the rest is deferred. None overtakes meanwhile: a lock with waiters is never
    /// granted past them (S7).
    pub(crate) fn admit(&mut self, names: &[LockName]) {
        let mut next: BTreeSet<Ticket> = names.iter().filter_map(|name| self.head(name)).collect();
        while let Some(ticket) = next.pop_first() {
            if self.work.is_exhausted() {
                next.insert(ticket);
                self.defer_admission(&next);
                break;
            }
            if !self.can_grant(ticket) {
                continue;
            }
            let Some(waiter) = self.leave(ticket) else { continue };
            let locks = waiter.locks.clone();
            self.grant_waiter(ticket, waiter);
            next.extend(locks.as_slice().iter().filter_map(|name| self.head(name)));
        }
        for name in names {
            self.note_if_free(name);
        }
    }

    /// Defers admission as a task for the first lock of each request. One suffices: a request that can be admitted is at the
    /// head of the queues of all its locks.
    fn defer_admission(&mut self, tickets: &BTreeSet<Ticket>) {
        for ticket in tickets {
            let first = self.waiters.get(ticket).and_then(|waiter| waiter.locks.as_slice().first());
            if let Some(name) = first.cloned() {
                self.backlog.push(Task::Admit(name));
            }
        }
    }

    /// Whether a request is at the head of the queues of all its locks and all have room. Tickets have one order, so the
    /// lowest ticket is never blocked by another waiter. A request whose session has ended is not granted: it keeps its place
    /// until it is removed in slices with everything of that session. Nor is a cancelled one.
    fn can_grant(&mut self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiters.get(&ticket) else { return false };
        self.work.charge(waiter.locks.as_slice().len() as u64);
        self.sessions.contains_key(&waiter.session)
            && !self.backlog.has_cancel(ticket)
            && waiter.locks.as_slice().iter().all(|name| {
                self.locks.get(name).is_some_and(|lock| lock.admits(waiter.units))
                    && self.head(name) == Some(ticket)
            })
    }

    pub(crate) fn grant_waiter(&mut self, ticket: Ticket, waiter: Waiter) {
        let Waiter { session, request, locks, mode, units, since, lock_delay_ms, until: _, extra } = waiter;
        let scope = scope_of(extra.as_ref());
        let waited_ms = self.now.ms_since(since);
        let held =
            Held { locks, mode, units, since: self.now, lock_delay_ms, request: request.clone(), extra };
        let grant = self.grant(session, held);
        if let Some(scope) = scope {
            self.schedule_wound(scope, grant.locks.as_slice());
        }
        self.effects.push(Effect::Granted { session, ticket, request, grant, waited_ms });
    }

    /// Grants locks: the only place that issues tokens (S1). The caller has checked that there is room.
    pub(crate) fn grant(&mut self, session: SessionId, held: Held) -> Grant {
        self.work.charge(LOCK_STEPS * held.locks.as_slice().len() as u64);
        self.last_token.0 += 1;
        let token = self.last_token;
        for name in held.locks.as_slice() {
            self.open_lock(name, |lock| {
                lock.used += held.units;
                debug_assert!(lock.used <= lock.capacity, "capacity exceeded");
                lock.last_token = token;
                lock.holders.add(token, session);
            });
        }
        let grant = Grant::new(&held, token);
        if let Some(request) = &held.request {
            self.requests.insert((session, request.clone()), Remembered::Granted(grant.clone()));
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.grants += 1;
        }
        if let Some(scope) = scope_of(held.extra.as_ref()) {
            self.scopes.note_grant(scope, token, held.locks.as_slice());
        }
        self.grants.insert((session, token), held);
        grant
    }
}
