//! Hands a lock over from its holder to a named waiter, whatever its place in the queue. Either the candidate holds the
//! lock when this is answered, or nothing changes.

use smol_str::SmolStr;

use super::release::NextHolder;
use crate::effect::{Answer, Freed, Reply};
use crate::id::{LockName, SessionId, Ticket, Token};
use crate::limits;
use crate::refusal::Refusal;
use crate::table::LockTable;
use crate::work::too_expensive;

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

    /// The first waiter with this value, or else with this owner, that waits for this lock only.
    fn candidate(&mut self, name: &LockName, to: &SmolStr) -> Result<Option<Ticket>, Refusal> {
        let queue =
            self.queues.range((name.clone(), Ticket::default())..).take_while(|(lock, _)| lock == name);
        let mut by_owner = None;
        for (_, ticket) in queue {
            if self.work.is_exhausted() {
                return Err(too_expensive("finding the candidate in the queue"));
            }
            self.work.charge(1);
            let Some(waiter) = self.waiters.get(ticket) else { continue };
            let Some(session) = self.sessions.get(&waiter.session) else { continue };
            if waiter.locks.as_slice().len() > 1 {
                continue;
            }
            if waiter.extra.as_ref().and_then(|extra| extra.value.as_ref()) == Some(to) {
                return Ok(Some(*ticket));
            }
            if by_owner.is_none() && session.owner == *to {
                by_owner = Some(*ticket);
            }
        }
        Ok(by_owner)
    }
}
