//! The bound on the total size of the table (S11). It is a replicated setting that administrators change by a log entry. It
//! does not depend on the memory of a node, so all nodes decide alike.
//!
//! At the bound, commands that add state are refused. Commands that free or end something still work, and may add a little:
//! the remembered answer of a released request, an event of the history.

use crate::command::{Acquire, Locks};
use crate::history::History;
use crate::limits;
use crate::refusal::Refusal;
use crate::table::LockTable;
use crate::weighed::{LogicalBytes, RECORD};

impl LockTable {
    /// The size of the table in logical bytes.
    pub fn state_bytes(&self) -> u64 {
        self.sessions.bytes()
            + self.locks.bytes()
            + self.grants.bytes()
            + self.waiters.bytes()
            + self.requests.bytes()
            + self.settled.bytes()
            + self.values.bytes()
            + self.limiters.bytes()
            + self.scopes.all.bytes()
            + self.access.bytes()
            + self.history.bytes()
    }

    /// The maximum size of the table.
    pub fn state_bytes_max(&self) -> u64 {
        self.state_bytes_max.unwrap_or(limits::STATE_BYTES_MAX)
    }

    /// The same as [`LockTable::state_bytes`], recounted.
    pub fn count_state_bytes(&self) -> u64 {
        self.sessions.count_bytes()
            + self.locks.count_bytes()
            + self.grants.count_bytes()
            + self.waiters.count_bytes()
            + self.requests.count_bytes()
            + self.settled.count_bytes()
            + self.values.count_bytes()
            + self.limiters.count_bytes()
            + self.scopes.all.count_bytes()
            + self.access.count_bytes()
            + self.history.count_bytes()
    }

    /// Whether the table is full.
    pub(crate) fn is_full(&self) -> bool {
        self.state_bytes() >= self.state_bytes_max()
    }

    /// Checks that the table has room for `more` bytes.
    pub(crate) fn check_state_bytes(&self, more: u64) -> Result<(), Refusal> {
        let (used, max) = (self.state_bytes(), self.state_bytes_max());
        match used.saturating_add(more) <= max {
            true => Ok(()),
            false => Err(Refusal::limit(format!(
                "the cell holds {used} bytes of state, and its limit is {max}: release locks, delete values or close \
                 sessions, or raise the limit with lockkeeper access quota set --cell --state-bytes N"
            ))),
        }
    }

    /// Changes the bound. It may be set below the current size: then nothing new is accepted until enough is freed.
    pub(crate) fn set_state_bytes_max(&mut self, bytes: Option<u64>) -> Result<(), Refusal> {
        if let Some(bytes) = bytes {
            let (min, max) = (limits::STATE_BYTES_SETTING_MIN, limits::STATE_BYTES_SETTING_MAX);
            limits::check_range("state_bytes", bytes, min, max)?;
        }
        self.state_bytes_max = bytes;
        Ok(())
    }
}

/// Upper bound on the growth by a request: its locks, its grant or place in the queue, its scope and its remembered
/// answer.
pub(crate) fn growth(request: &Acquire) -> u64 {
    let names =
        |locks: &Locks| locks.as_slice().iter().map(|name| RECORD + name.logical_bytes()).sum::<u64>();
    3 * names(&request.locks)
        + 2 * request.request.logical_bytes()
        + request.scope.logical_bytes()
        + request.value.logical_bytes()
        + 3 * RECORD
}

impl History {
    pub(crate) fn bytes(&self) -> u64 {
        self.recent.bytes()
            + self.rings.bytes()
            + self.acts_bytes
            + self.owners_of_ended_sessions.bytes()
            + self.leaders_bytes()
    }

    fn count_bytes(&self) -> u64 {
        let recent: u64 = self.recent.iter().map(LogicalBytes::logical_bytes).sum();
        let acts: u64 = self.acts.iter().map(LogicalBytes::logical_bytes).sum();
        recent
            + self.rings.count_bytes()
            + acts
            + self.owners_of_ended_sessions.count_bytes()
            + self.leaders_bytes()
    }

    fn leaders_bytes(&self) -> u64 {
        self.leaders.len() as u64 * RECORD
    }
}
