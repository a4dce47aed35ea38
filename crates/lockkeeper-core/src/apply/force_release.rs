//! An operator frees a lock, whoever holds it.

use smol_str::SmolStr;

use crate::effect::{Answer, Freed, Reply};
use crate::id::{CellTime, LockName};
use crate::limits;
use crate::refusal::Refusal;
use crate::session::Remembered;
use crate::table::{LockTable, Timer};

impl LockTable {
    pub(crate) fn force_release(&mut self, name: &LockName, reason: &SmolStr, by: &SmolStr) -> Answer {
        limits::check_name("name of the lock", name)?;
        limits::check_length("reason", reason.len(), limits::REASON_BYTES_MAX)?;
        limits::check_length("identity", by.len(), limits::IDENTITY_BYTES_MAX)?;
        self.check_token_left()?;
        // The token rises first: whoever is let in below gets a still higher one.
        self.last_token.0 += 1;
        let raised = self.last_token;
        let (closed_until, holders) = self.open_lock(name, |lock| {
            lock.last_token = raised;
            (std::mem::take(&mut lock.closed_until), lock.holders.iter().collect::<Vec<_>>())
        });
        if closed_until != CellTime::default() {
            self.timers.remove(&(closed_until, Timer::Reopens(name.clone())));
        }
        for &(token, session) in &holders {
            if let Some(Some(request)) = self.free_one(session, name, token, Freed::Forced) {
                // A retry must not hear of the grant as if it still held.
                let answer = Remembered::Refused(Refusal::NotHeld { lock: name.clone(), token });
                self.settle(session, request, answer);
            }
        }
        self.admit(std::slice::from_ref(name));
        let last_token = self.locks.get(name).map_or(raised, |lock| lock.last_token);
        Ok(Reply::Forced { released: holders.len() as u32, last_token })
    }
}
