//! Hands a lock over from its holder to a named waiter, whatever its place in the queue. Either the candidate holds the
//! lock when this is answered, or nothing changes.

use smol_str::SmolStr;

use super::release::NextHolder;
use crate::effect::{Answer, Freed, Reply};
use crate::id::{LockName, SessionId, Ticket, Token};
use crate::limits;
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::table::LockTable;
use crate::work::{Work, too_expensive};

impl LockTable {
    pub(crate) fn hand_over(
        &mut self,
        session: SessionId,
        name: &LockName,
        token: Token,
        to: &SmolStr,
    ) -> Answer {
        limits::check_name("name of the lock", name)?;
        self.touch_session(session)?;
        let held = self.grants.get(&(session, token)).filter(|held| held.locks.as_slice().contains(name));
        let Some(given_back) = held.map(|held| held.units) else {
            return Err(Refusal::NotHeld { lock: name.clone(), token });
        };
        let Some(successor) = self.candidate(name, to)? else {
            return Err(Refusal::invalid(format!(
                "no waiter for \"{name}\" has the value or the owner \"{to}\": name a candidate that waits"
            )));
        };
        // The answer promises that the candidate has the lock. If other holders block it, nothing is done: a candidate
        // that keeps waiting could be overtaken by the waiters before it.
        let units = self.waiters.get(&successor).map_or(0, |waiter| waiter.units);
        if !self.locks.get(name).is_some_and(|lock| lock.admits_in_exchange(units, given_back)) {
            if mutation::is_on(Mutation::HandOverAnyway) {
                self.free_one(session, name, token, Freed::Released);
                return Ok(Reply::Done);
            }
            return Err(Refusal::invalid(format!(
                "cannot hand \"{name}\" over to \"{to}\": other holders block the candidate; release the lock \
                 instead, or wait until they release theirs"
            )));
        }
        // It leaves the queue before the lock is free, so no other waiter is admitted first.
        let Some(waiter) = self.leave(successor) else { return Err(Refusal::SessionLost) };
        let taken = self.take_from(session, name, token, Freed::Released, NextHolder::Chosen);
        if let Some(request) = taken.and_then(|taken| taken.request) {
            self.note_settled(session, request);
        }
        self.grant_waiter(successor, waiter);
        self.admit(std::slice::from_ref(name));
        Ok(Reply::Done)
    }

    /// The first waiter with this value, or else with this owner, that waits for this lock only. Values are indexed. An owner
    /// is searched for among the first [`CANDIDATES_EXAMINED_MAX`](limits::CANDIDATES_EXAMINED_MAX) waiters.
    fn candidate(&mut self, name: &LockName, to: &SmolStr) -> Result<Option<Ticket>, Refusal> {
        let LockTable { candidates, queues, waiters, sessions, work, .. } = self;
        let named = candidates
            .range((name.clone(), to.clone(), Ticket::default())..)
            .take_while(|(lock, value, _)| lock == name && value == to);
        for (_, _, ticket) in named {
            examine(work)?;
            if waiters.get(ticket).is_some_and(|waiter| sessions.contains_key(&waiter.session)) {
                return Ok(Some(*ticket));
            }
        }
        let queue = queues.range((name.clone(), Ticket::default())..).take_while(|(lock, _)| lock == name);
        for ((_, ticket), examined) in queue.zip(0..) {
            if examined >= limits::CANDIDATES_EXAMINED_MAX {
                return Err(Refusal::limit(format!(
                    "no waiter for \"{name}\" has the value \"{to}\", and none of the first {examined} has this owner: name the \
                     candidate by its value"
                )));
            }
            examine(work)?;
            let Some(waiter) = waiters.get(ticket).filter(|waiter| waiter.locks.as_slice().len() == 1) else {
                continue;
            };
            if sessions.get(&waiter.session).is_some_and(|session| session.owner == *to) {
                return Ok(Some(*ticket));
            }
        }
        Ok(None)
    }
}

/// Counts the examination of one waiter.
fn examine(work: &mut Work) -> Result<(), Refusal> {
    if work.is_exhausted() {
        return Err(too_expensive("finding the candidate in the queue"));
    }
    work.charge(1);
    Ok(())
}
