//! A holder passes its lock on to one of those who wait, whoever is first in line. The candidate has the lock when this is
//! answered; otherwise nothing changes.

use smol_str::SmolStr;

use super::release::Line;
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
        self.heard_of(session)?;
        let held = self.grants.get(&(session, token)).filter(|held| held.locks.as_slice().contains(name));
        let Some(given_back) = held.map(|held| held.units) else {
            return Err(Refusal::NotHeld { lock: name.clone(), token });
        };
        let Some(heir) = self.candidate(name, to)? else {
            return Err(Refusal::invalid(format!(
                "nobody who waits for \"{name}\" is called \"{to}\": name a candidate by its value or its owner"
            )));
        };
        // The answer says that the candidate has the lock. Where other holders keep it out, nothing is done: a candidate
        // that had to go on waiting could be overtaken by anyone in front of it.
        let units = self.waiters.get(&heir).map_or(0, |waiter| waiter.units);
        if !self.locks.get(name).is_some_and(|lock| lock.admits_in_exchange(units, given_back)) {
            return Err(Refusal::invalid(format!(
                "\"{name}\" cannot be handed to \"{to}\": other holders keep the candidate out; release the lock \
                 instead, or wait until they have released theirs"
            )));
        }
        // It leaves the line before the lock is free, so nobody else is let in first.
        let Some(waiter) = self.leave(heir) else { return Err(Refusal::SessionLost) };
        let taken = self.take_from(session, name, token, Freed::Released, Line::HasAnHeir);
        if let Some(request) = taken.and_then(|taken| taken.request) {
            self.note_settled(session, request);
        }
        self.grant_waiter(heir, waiter);
        self.admit(std::slice::from_ref(name));
        Ok(Reply::Done)
    }

    /// The first in line whose value, or whose owner, is this one, and who waits for nothing else.
    fn candidate(&mut self, name: &LockName, to: &SmolStr) -> Result<Option<Ticket>, Refusal> {
        let line =
            self.queues.range((name.clone(), Ticket::default())..).take_while(|(lock, _)| lock == name);
        let mut by_owner = None;
        for (_, ticket) in line {
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
