//! Execution of commands: one file for each kind, and one switch.

mod access;
mod acquire;
mod force_release;
mod hand_over;
mod release;
mod session;
mod tick;
mod value;

use crate::command::Command;
use crate::effect::Answer;
use crate::table::LockTable;

use self::access::audit_note;

impl LockTable {
    /// Executes a command. The only switch over all commands; it has no default arm.
    pub(crate) fn run(&mut self, command: &Command) -> Answer {
        match command {
            Command::OpenSession { session, ttl_ms, owner, identity } => {
                self.open_session(*session, *ttl_ms, owner, identity.as_ref())
            }
            Command::CloseSession { session } => self.close_session(*session),
            Command::ExpireSession { session, version } => self.expire_session(*session, *version),
            Command::Acquire(request) => self.acquire(request),
            Command::Cancel { session, what } => self.cancel(*session, what),
            Command::Release { session, lock, token, forget } => {
                self.release(*session, lock, *token, *forget)
            }
            Command::ForceRelease { lock, reason, by } => self.force_release(lock, reason, by),
            Command::PutValue { key, value, fence, if_version } => {
                self.put_value(key, value, fence.as_ref(), *if_version)
            }
            Command::DeleteValue { key, fence, if_version } => {
                self.delete_value(key, fence.as_ref(), *if_version)
            }
            Command::HandOver { session, lock, token, to } => self.hand_over(*session, lock, *token, to),
            Command::TakeRate(take) => self.take_rate(take),
            Command::ChangeAccess { by, change } => self.change_access(by, change),
            Command::AuditNote { by, text } => audit_note(by, text),
            Command::Tick => Ok(crate::effect::Reply::Done),
            Command::RaiseCellVersion { to } => self.raise_cell_version(*to),
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { text } => self.next_version_note(text),
        }
    }
}
