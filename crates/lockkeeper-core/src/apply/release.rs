//! Releases a lock.

use crate::command::Locks;
use crate::effect::{Answer, Effect, Freed, Reply};
use crate::id::{LockName, RequestId, SessionId, Token};
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::scope::scope_of;
use crate::table::{LockTable, Timer};
use crate::work::LOCK_STEPS;

/// How the next holder is chosen. While a chosen one is about to be granted, the lock must not be marked as free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextHolder {
    /// By the queue.
    FromQueue,
    /// By the caller, who grants the lock to it.
    Chosen,
}

/// The result of taking a lock out of a grant.
pub(crate) struct Taken {
    /// The id of its request, if this was the last lock of the grant.
    pub(crate) request: Option<RequestId>,
    /// Whether the lock is free now.
    is_free: bool,
}

impl LockTable {
    pub(crate) fn release(
        &mut self,
        session: SessionId,
        lock: &LockName,
        token: Token,
        forget: bool,
    ) -> Answer {
        self.touch_session(session)?;
        let (session, token) = match mutation::is_on(Mutation::ReleaseByAnyone) {
            true => self.first_holder(lock).unwrap_or((session, token)),
            false => (session, token),
        };
        let Some(request) = self.free_one(session, lock, token, Freed::Released) else {
            return Err(Refusal::NotHeld { lock: lock.clone(), token });
        };
        if let Some(request) = request {
            if forget {
                self.requests.remove(&(session, request));
            } else {
                self.note_settled(session, request);
            }
        }
        Ok(Reply::Done)
    }

    /// Takes one lock out of a grant and admits the next waiters. `None` if the token does not hold it. Returns the request
    /// id if this was the last lock of the grant.
    pub(crate) fn free_one(
        &mut self,
        session: SessionId,
        name: &LockName,
        token: Token,
        why: Freed,
    ) -> Option<Option<RequestId>> {
        let taken = self.take_from(session, name, token, why, NextHolder::FromQueue)?;
        // A free lock has no waiters.
        if !taken.is_free {
            self.admit(std::slice::from_ref(name));
        }
        Some(taken.request)
    }

    fn first_holder(&self, lock: &LockName) -> Option<(SessionId, Token)> {
        self.locks.get(lock)?.holders.iter().next().map(|(token, session)| (session, token))
    }

    /// Like `free_one`, without admitting waiters.
    pub(crate) fn take_from(
        &mut self,
        session: SessionId,
        name: &LockName,
        token: Token,
        why: Freed,
        next: NextHolder,
    ) -> Option<Taken> {
        self.work.charge(LOCK_STEPS);
        // Nearly always this frees the whole grant: remove it, and put it back otherwise.
        let mut held = self.grants.remove(&(session, token))?;
        if !held.locks.as_slice().contains(name) {
            self.grants.insert((session, token), held);
            return None;
        }
        let (units, held_ms) = (held.units, self.now.ms_since(held.since));
        let scope = scope_of(held.extra.as_ref());
        let delay_ms = if why == Freed::SessionExpired { held.lock_delay_ms } else { 0 };
        let mut request = None;
        let is_whole = held.locks.as_slice().len() == 1;
        if is_whole {
            request = held.request;
            if let Some(alive) = self.sessions.get_mut(&session) {
                alive.grants -= 1;
            }
        } else {
            held.locks = Locks::many(held.locks.as_slice().iter().filter(|lock| *lock != name).cloned());
            self.grants.insert((session, token), held);
        }
        if let Some(scope) = scope {
            self.scopes.forget_lock(scope, token, name);
            if is_whole {
                self.scopes.forget_grant(scope, token);
                self.note_if_idle(scope);
            }
        }
        let mut is_free = false;
        if let Some(lock) = self.locks.get_mut(name) {
            lock.used -= units;
            lock.holders.remove(token);
            if delay_ms > 0 {
                let reopens = self.now.plus_ms(delay_ms);
                if reopens > lock.closed_until {
                    self.timers.remove(&(lock.closed_until, Timer::Reopens(name.clone())));
                    lock.closed_until = reopens;
                    self.timers.insert((reopens, Timer::Reopens(name.clone())));
                }
            }
            is_free = next == NextHolder::FromQueue && lock.forget_if_free(self.free_next);
        }
        if is_free {
            self.remember_free(name);
        }
        self.effects.push(Effect::Freed { session, lock: name.clone(), token, why, held_ms });
        Some(Taken { request, is_free })
    }
}
