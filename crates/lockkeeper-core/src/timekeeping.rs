//! When cell time has to be logged although nobody asks for anything (S2).
//!
//! A new leader continues at the cell time of the last entry. On a quiet cell that could be an hour ago, and everything that
//! is measured in cell time would be an hour younger after a fail-over.

use crate::id::CellTime;
use crate::table::LockTable;

/// The longest time between two entries while anything depends on cell time. A little less than a second, so that an
/// entry that is still being committed when the leader fails sets cell time back by at most a second in all.
pub const TIME_LOGGED_EVERY_MS: u64 = 950;

impl LockTable {
    /// When the next entry is due even if nobody asks for anything: [`LockTable::next_wake`], or the moment at which cell
    /// time has to be logged again. The leader then proposes a `Tick`. `None` if nothing depends on time: such a cell
    /// writes nothing to its log.
    pub fn next_entry_due(&self) -> Option<CellTime> {
        let time = self.depends_on_time().then(|| self.now.plus_ms(TIME_LOGGED_EVERY_MS));
        match (self.next_wake(), time) {
            (Some(wake), Some(time)) => Some(wake.min(time)),
            (wake, time) => wake.or(time),
        }
    }

    /// Whether anything is measured in cell time: the age of a session, how long a lock is held or waited for, a lock-delay
    /// or a rate limiter that is not full, or an event whose UTC is still to be recorded. The history does not count: its
    /// events have UTC.
    fn depends_on_time(&self) -> bool {
        let limits_rate = || {
            self.limiters_due.get_max().is_some_and(|(full_again, _)| *full_again > self.now.as_nanoseconds())
        };
        !self.sessions.is_empty()
            || !self.grants.is_empty()
            || !self.waiters.is_empty()
            || !self.timers.is_empty()
            || self.history.awaits_utc()
            || limits_rate()
    }
}
