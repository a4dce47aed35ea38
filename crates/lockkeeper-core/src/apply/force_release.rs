//! Frees a lock by order of an operator, whoever holds it.

use smol_str::SmolStr;

use crate::effect::{Answer, Freed, Reply};
use crate::id::{CellTime, LockName, Token};
use crate::limits;
use crate::refusal::Refusal;
use crate::session::Remembered;
use crate::table::{LockTable, Timer};
use crate::work::Task;

impl LockTable {
    pub(crate) fn force_release(&mut self, name: &LockName, reason: &SmolStr, by: &SmolStr) -> Answer {
        limits::check_name("name of the lock", name)?;
        limits::check_length("reason", reason.len(), limits::REASON_BYTES_MAX)?;
        limits::check_length("identity", by.len(), limits::IDENTITY_BYTES_MAX)?;
        self.check_token_left()?;
        // Raise the token first: the next holder, admitted below, gets a higher one.
        self.last_token.0 += 1;
        let raised = self.last_token;
        let (closed_until, holders) = self.open_lock(name, |lock| {
            lock.last_token = raised;
            (std::mem::take(&mut lock.closed_until), lock.holders.len())
        });
        if closed_until != CellTime::default() {
            self.timers.remove(&(closed_until, Timer::Reopens(name.clone())));
        }
        self.take_by_force(name, raised, reason);
        self.admit(std::slice::from_ref(name));
        let last_token = self.locks.get(name).map_or(raised, |lock| lock.last_token);
        Ok(Reply::Forced { released: holders as u32, last_token })
    }

    /// Takes the lock from all holders with a token below `below`, oldest first. Holders beyond the budget of this entry keep
    /// it for a few more entries; every gate already refuses their tokens.
    pub(crate) fn take_by_force(&mut self, name: &LockName, below: Token, reason: &SmolStr) {
        while let Some((token, session)) = self.locks.get(name).and_then(|lock| lock.holders.iter().next())
            && token < below
        {
            if self.work.is_exhausted() {
                self.backlog.push(Task::Force { lock: name.clone(), below, reason: reason.clone() });
                return;
            }
            if let Some(Some(request)) = self.free_one(session, name, token, Freed::Forced) {
                // A retry must not be answered with the lost grant.
                let answer = Remembered::Refused(Refusal::NotHeld { lock: name.clone(), token });
                self.settle(session, request, answer);
            }
        }
    }
}
