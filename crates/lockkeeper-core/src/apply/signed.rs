//! What is done in somebody's name.

use crate::command::{Signed, SignedWhat};
use crate::effect::{Answer, Reply};
use crate::limits;
use crate::table::LockTable;

impl LockTable {
    pub(crate) fn signed(&mut self, signed: &Signed) -> Answer {
        let Signed { by, what } = signed;
        limits::check_length("identity", by.len(), limits::IDENTITY_BYTES_MAX)?;
        match what {
            SignedWhat::OpenSession { session, ttl_ms, owner } => {
                self.access.check_session(by)?;
                let answer = self.open_session(*session, *ttl_ms, owner)?;
                if let Some(opened) = self.sessions.get_mut(session) {
                    opened.identity = Some(by.clone());
                }
                self.access.session_opened(by);
                Ok(answer)
            }
            SignedWhat::ForceRelease { lock, reason } => self.force_release(lock, reason),
            SignedWhat::Access(change) => {
                let counted = self.access.counts();
                self.access.change(self.now, change)?;
                if counted != self.access.counts() {
                    self.count_usage();
                }
                Ok(Reply::Done)
            }
            SignedWhat::Note(text) => {
                limits::check_length("note", text.len(), limits::REASON_BYTES_MAX)?;
                Ok(Reply::Done)
            }
        }
    }
}
