//! One file for each kind of command, and one switch.

mod acquire;
mod force_release;
mod hand_over;
mod release;
mod session;
mod signed;
mod tick;
mod value;

use crate::command::Command;
use crate::effect::Answer;
use crate::table::LockTable;

impl LockTable {
    /// The one switch: every command, no default arm.
    pub(crate) fn run(&mut self, command: &Command) -> Answer {
        match command {
            Command::OpenSession { session, ttl_ms, owner } => self.open_session(*session, *ttl_ms, owner),
            Command::CloseSession { session } => self.close_session(*session),
            Command::ExpireSession { session, version } => self.expire_session(*session, *version),
            Command::Acquire(request) => self.acquire(request),
            Command::Cancel { session, what } => self.cancel(*session, what),
            Command::Release { session, lock, token, forget } => {
                self.release(*session, lock, *token, *forget)
            }
            Command::ForceRelease { lock, reason } => self.force_release(lock, reason),
            Command::PutValue { key, value, fence, if_version } => {
                self.put_value(key, value, fence.as_ref(), *if_version)
            }
            Command::DeleteValue { key, fence, if_version } => {
                self.delete_value(key, fence.as_ref(), *if_version)
            }
            Command::HandOver { session, lock, token, to } => self.hand_over(*session, lock, *token, to),
            Command::TakeRate(take) => self.take_rate(take),
            Command::Signed(signed) => self.signed(signed),
            Command::Tick => Ok(crate::effect::Reply::Done),
        }
    }
}
