//! What time alone brings: waits and lock-delays that end, and ended sessions that are cleared away.

use crate::effect::{Freed, SessionEnd};
use crate::id::{CellTime, RequestId, SessionId, Ticket, Token};
use crate::refusal::Refusal;
use crate::table::{LockTable, Timer};

impl LockTable {
    /// Ends the waits and lock-delays that are due, at most `budget` of them.
    pub(crate) fn run_timers(&mut self, budget: &mut usize) {
        while *budget > 0 {
            let Some((due, timer)) = self.timers.get_min().cloned() else { return };
            if due > self.now {
                return;
            }
            *budget -= 1;
            self.timers.remove(&(due, timer.clone()));
            match timer {
                Timer::WaitEnds(ticket) => {
                    let Some(waiter) = self.waiters.get(&ticket) else { continue };
                    let Some(lock) = waiter.locks.as_slice().first().cloned() else { continue };
                    self.end_wait(ticket, Refusal::Timeout { lock });
                }
                Timer::Reopens(name) => {
                    if let Some(lock) = self.locks.get_mut(&name) {
                        lock.closed_until = CellTime::default();
                    }
                    self.admit(&[name]);
                }
            }
        }
    }

    /// Takes back what ended sessions held, at most `budget` things of it. The waits go first, so that
    /// nothing is granted to the dead.
    pub(crate) fn reap(&mut self, budget: &mut usize) {
        while let Some(&(number, (session, why))) = self.ending.get_min() {
            if !self.reap_session(session, why, budget) {
                return;
            }
            self.ending.remove(&number);
        }
    }

    /// Whether anything of the session is left to be taken back.
    pub(crate) fn has_remains(&self, session: SessionId) -> bool {
        self.first_wait_of(session).is_some()
            || self.first_grant_of(session).is_some()
            || self.first_request_of(session).is_some()
            || self.first_settled_of(session).is_some()
            || self.first_scope_of(session).is_some()
    }

    /// True if nothing of the session is left.
    fn reap_session(&mut self, session: SessionId, why: SessionEnd, budget: &mut usize) -> bool {
        let freed = match why {
            SessionEnd::Closed => Freed::SessionClosed,
            SessionEnd::Expired => Freed::SessionExpired,
        };
        while let Some(ticket) = self.first_wait_of(session) {
            if !spend(budget) {
                return false;
            }
            self.end_wait(ticket, Refusal::SessionLost);
        }
        while let Some(token) = self.first_grant_of(session) {
            let locks = self.grants.get(&(session, token)).map(|held| held.locks.clone());
            for name in locks.iter().flat_map(|locks| locks.as_slice()) {
                if !spend(budget) {
                    return false;
                }
                self.free_one(session, name, token, freed);
            }
        }
        while let Some(request) = self.first_request_of(session) {
            if !spend(budget) {
                return false;
            }
            self.requests.remove(&(session, request));
        }
        while let Some(number) = self.first_settled_of(session) {
            if !spend(budget) {
                return false;
            }
            self.settled.remove(&(session, number));
        }
        while let Some(scope) = self.first_scope_of(session) {
            if !spend(budget) {
                return false;
            }
            self.forget_scope(scope);
        }
        true
    }

    fn first_wait_of(&self, session: SessionId) -> Option<Ticket> {
        let (owner, ticket) = self.waits.range((session, Ticket::default())..).next()?;
        (*owner == session).then_some(*ticket)
    }

    fn first_grant_of(&self, session: SessionId) -> Option<Token> {
        let ((owner, token), _) = self.grants.range((session, Token::default())..).next()?;
        (*owner == session).then_some(*token)
    }

    fn first_request_of(&self, session: SessionId) -> Option<RequestId> {
        let ((owner, request), _) = self.requests.range((session, RequestId::default())..).next()?;
        (*owner == session).then(|| request.clone())
    }

    fn first_settled_of(&self, session: SessionId) -> Option<u64> {
        let ((owner, number), _) = self.settled.range((session, 0)..).next()?;
        (*owner == session).then_some(*number)
    }
}

fn spend(budget: &mut usize) -> bool {
    let left = *budget > 0;
    *budget = budget.saturating_sub(1);
    left
}
