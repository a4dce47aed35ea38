//! Work that is due by time alone: ends of waits and lock-delays, and cleanup after ended sessions.

use crate::bounds::bounds;
use crate::effect::{Freed, SessionEnd};
use crate::id::{CellTime, RequestId, SessionId, Ticket, Token};
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::table::{LockTable, Timer};

impl LockTable {
    /// Ends the waits and lock-delays that are due, within the budget of the entry.
    pub(crate) fn run_timers(&mut self) {
        while !self.work.is_exhausted() {
            let Some((due, timer)) = self.timers.get_min().cloned() else { return };
            if due > self.now {
                return;
            }
            self.work.charge(1);
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

    /// Frees what ended sessions held, within the budget of the entry: first the locks of all of them, then their
    /// remembered answers and scopes, for which no caller waits.
    pub(crate) fn reap(&mut self) {
        while let Some(&(number, (session, why))) = self.ending.get_min() {
            if mutation::is_on(Mutation::ReapAnswersFirst) && !self.forget_all_of(session) {
                break;
            }
            if !self.free_all_of(session, why) {
                break;
            }
            self.ending.remove(&number);
            self.history.cleared.push(session);
            if self.has_remains(session) {
                self.forgetting.insert(number, session);
            }
        }
        self.work.keep_at_most(u64::MAX);
        self.work.allot(bounds().steps_for_forgetting);
        while let Some(&(number, session)) = self.forgetting.get_min() {
            if !self.forget_all_of(session) {
                return;
            }
            self.forgetting.remove(&number);
        }
    }

    /// Whether anything of the session is left to free or forget.
    pub(crate) fn has_remains(&self, session: SessionId) -> bool {
        self.first_wait_of(session).is_some()
            || self.first_grant_of(session).is_some()
            || self.first_request_of(session).is_some()
            || self.first_settled_of(session).is_some()
            || self.first_scope_of(session).is_some()
    }

    /// Ends the waits of an ended session, so that nothing is granted to it, and then its grants. True if none is left.
    fn free_all_of(&mut self, session: SessionId, why: SessionEnd) -> bool {
        let freed = match why {
            SessionEnd::Closed => Freed::SessionClosed,
            SessionEnd::Expired => Freed::SessionExpired,
        };
        self.work.charge(1);
        while let Some(ticket) = self.first_wait_of(session) {
            if self.work.is_exhausted() {
                return false;
            }
            self.end_wait(ticket, Refusal::SessionLost);
        }
        while let Some(token) = self.first_grant_of(session) {
            let locks = self.grants.get(&(session, token)).map(|held| held.locks.clone());
            for name in locks.iter().flat_map(|locks| locks.as_slice()) {
                if self.work.is_exhausted() {
                    return false;
                }
                self.free_one(session, name, token, freed);
            }
        }
        true
    }

    /// Forgets the answers and the scopes of an ended session. True if none is left.
    fn forget_all_of(&mut self, session: SessionId) -> bool {
        self.work.charge(1);
        loop {
            if self.work.is_exhausted() {
                return !self.has_remains(session);
            }
            self.work.charge(1);
            if let Some(request) = self.first_request_of(session) {
                self.requests.remove(&(session, request));
            } else if let Some(number) = self.first_settled_of(session) {
                self.settled.remove(&(session, number));
            } else if let Some(scope) = self.first_scope_of(session) {
                self.forget_scope(scope);
            } else {
                return true;
            }
        }
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
