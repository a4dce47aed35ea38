//! Give a lock back.

use crate::command::Locks;
use crate::effect::{Answer, Effect, Freed, Reply};
use crate::id::{LockName, RequestId, SessionId, Token};
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::scope::scope_of;
use crate::table::{LockTable, Timer};

impl LockTable {
    pub(crate) fn release(
        &mut self,
        session: SessionId,
        lock: &LockName,
        token: Token,
        forget: bool,
    ) -> Answer {
        self.heard_of(session)?;
        let (session, token) = match mutation::is_on(Mutation::ReleaseByAnyone) {
            true => self.whoever_holds(lock).unwrap_or((session, token)),
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

    /// Takes one lock out of a grant and lets in whoever is next. `None` if that token does not hold it.
    /// The request id comes back when the last lock of the grant has gone.
    pub(crate) fn free_one(
        &mut self,
        session: SessionId,
        name: &LockName,
        token: Token,
        why: Freed,
    ) -> Option<Option<RequestId>> {
        let request = self.take_from(session, name, token, why)?;
        // Nobody waits for a lock that is free.
        if !self.note_if_free(name) {
            self.admit(std::slice::from_ref(name));
        }
        Some(request)
    }

    fn whoever_holds(&self, lock: &LockName) -> Option<(SessionId, Token)> {
        self.locks.get(lock)?.holders.iter().next().map(|(token, session)| (session, token))
    }

    /// The same, but nobody is let in yet.
    pub(crate) fn take_from(
        &mut self,
        session: SessionId,
        name: &LockName,
        token: Token,
        why: Freed,
    ) -> Option<Option<RequestId>> {
        let held = self.grants.get(&(session, token))?;
        if !held.locks.as_slice().contains(name) {
            return None;
        }
        let (units, held_ms) = (held.units, self.now.ms_since(held.since));
        let scope = scope_of(held.extra.as_ref());
        let delay_ms = if why == Freed::SessionExpired { held.lock_delay_ms } else { 0 };
        let mut request = None;
        if held.locks.as_slice().len() == 1 {
            request = self.grants.remove(&(session, token)).and_then(|held| held.request);
            if let Some(alive) = self.sessions.get_mut(&session) {
                alive.grants -= 1;
            }
        } else if let Some(held) = self.grants.get_mut(&(session, token)) {
            held.locks = Locks::many(held.locks.as_slice().iter().filter(|lock| *lock != name).cloned());
        }
        if let Some(scope) = scope {
            self.scopes.holding.remove(&(name.clone(), scope, token));
            if !self.grants.contains_key(&(session, token)) {
                self.scopes.forget_grant(scope, token);
                self.note_if_idle(scope);
            }
        }
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
        }
        self.effects.push(Effect::Freed { session, lock: name.clone(), token, why, held_ms });
        Some(request)
    }
}
