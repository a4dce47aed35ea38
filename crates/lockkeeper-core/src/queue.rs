//! Those who wait. One line for each lock, in the order of tickets; nobody overtakes (S7).

use serde::{Deserialize, Serialize};

use crate::command::{Locks, Mode};
use crate::effect::{Effect, Grant};
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket};
use crate::lock::Held;
use crate::refusal::Refusal;
use crate::session::Remembered;
use crate::table::{LockTable, Timer};

/// A request that waits for one lock, or for several at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub(crate) session: SessionId,
    pub(crate) request: Option<RequestId>,
    pub(crate) locks: Locks,
    pub(crate) mode: Mode,
    /// Units it will take of each lock.
    pub(crate) units: u32,
    pub(crate) since: CellTime,
    pub(crate) until: Option<CellTime>,
    pub(crate) lock_delay_ms: u64,
}

impl LockTable {
    /// The ticket at the head of a lock's line.
    pub(crate) fn head(&self, lock: &LockName) -> Option<Ticket> {
        if self.locks.get(lock)?.waiting == 0 {
            return None;
        }
        let from = (lock.clone(), Ticket::default());
        self.queues.range(from..).next().filter(|(name, _)| name == lock).map(|(_, ticket)| *ticket)
    }

    /// Puts a request at the end of the line of each of its locks.
    pub(crate) fn enqueue(&mut self, waiter: Waiter) -> Ticket {
        self.last_ticket.0 += 1;
        let ticket = self.last_ticket;
        for name in waiter.locks.as_slice() {
            self.queues.insert((name.clone(), ticket));
            if let Some(lock) = self.locks.get_mut(name) {
                lock.waiting += 1;
            }
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
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Takes a request out of every line it stands in. Whoever calls this then lets in those behind it.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        for name in waiter.locks.as_slice() {
            self.queues.remove(&(name.clone(), ticket));
            if let Some(lock) = self.locks.get_mut(name) {
                lock.waiting -= 1;
            }
        }
        self.waits.remove(&(waiter.session, ticket));
        if let Some(session) = self.sessions.get_mut(&waiter.session) {
            session.waits -= 1;
        }
        if let Some(until) = waiter.until {
            self.timers.remove(&(until, Timer::WaitEnds(ticket)));
        }
        Some(waiter)
    }

    /// Ends a wait without a grant and lets in those behind it.
    pub(crate) fn end_wait(&mut self, ticket: Ticket, refusal: Refusal) {
        let Some(waiter) = self.leave(ticket) else { return };
        if let Some(request) = &waiter.request {
            self.settle(waiter.session, request.clone(), Remembered::Refused(refusal.clone()));
        }
        self.effects.push(Effect::Ended {
            session: waiter.session,
            ticket,
            request: waiter.request,
            refusal,
        });
        for name in waiter.locks.as_slice() {
            self.admit(name);
        }
    }

    /// Lets in whoever is next, for as long as the lock has room. Called after everything that can change
    /// the head of a line or the room in a lock. A request for several locks goes in when it is at the
    /// head of all their lines and all have room: tickets have one order, so the lowest can always go.
    pub(crate) fn admit(&mut self, name: &LockName) {
        while let Some(ticket) = self.head(name) {
            let Some(waiter) = self.waiters.get(&ticket) else { return };
            let session = waiter.session;
            if !self.sessions.contains_key(&session) {
                // Its session has ended and will be cleared away later: it must not block the line.
                self.end_wait(ticket, Refusal::SessionLost);
                continue;
            }
            let units = waiter.units;
            let all_have_room = waiter.locks.as_slice().iter().all(|lock| {
                self.locks.get(lock).is_some_and(|l| l.admits(units, self.now))
                    && (lock == name || self.head(lock) == Some(ticket))
            });
            if !all_have_room {
                break;
            }
            let Some(waiter) = self.leave(ticket) else { return };
            let waited_ms = self.now.ms_since(waiter.since);
            let request = waiter.request.clone();
            let grant = self.grant(
                session,
                Held {
                    locks: waiter.locks,
                    mode: waiter.mode,
                    units: waiter.units,
                    since: self.now,
                    lock_delay_ms: waiter.lock_delay_ms,
                    request: waiter.request,
                },
            );
            self.effects.push(Effect::Granted { session, ticket, request, grant, waited_ms });
        }
        self.note_if_free(name);
    }

    /// Lets a holder in: the only place where tokens are made (S1). The caller has checked that there is room.
    pub(crate) fn grant(&mut self, session: SessionId, held: Held) -> Grant {
        self.last_token.0 += 1;
        let token = self.last_token;
        for name in held.locks.as_slice() {
            let Some(lock) = self.locks.get_mut(name) else { continue };
            lock.used += held.units;
            debug_assert!(lock.used <= lock.capacity, "capacity exceeded");
            lock.last_token = token;
            lock.holders.add(token, session);
        }
        let grant = Grant { locks: held.locks.clone(), token, mode: held.mode };
        if let Some(request) = &held.request {
            self.requests.insert((session, request.clone()), Remembered::Granted(grant.clone()));
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.grants += 1;
        }
        self.grants.insert((session, token), held);
        grant
    }
}
