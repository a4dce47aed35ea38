//! Logging of cell time on an idle cell (S2).
//!
//! A new leader continues at the cell time of the last entry. On an idle cell that could be an hour ago, and every duration
//! in cell time would be an hour shorter after a fail-over.

use crate::id::CellTime;
use crate::mutation::{self, Mutation};
use crate::table::LockTable;

/// The longest time between two entries while anything depends on cell time, for members in one place. A little less than a
/// second, so that cell time is set back by at most a second even if the last entry was not committed when the leader failed.
/// The leader of members that are further apart logs it more often.
pub const TIME_LOGGED_EVERY_MS: u64 = 950;

impl LockTable {
    /// When the next entry is due without requests: at [`LockTable::next_wake`], or when cell time has to be logged again.
    /// The leader then proposes a `Tick`. `None` if nothing depends on time: such a cell writes nothing to its log.
    pub fn next_entry_due(&self) -> Option<CellTime> {
        self.next_entry_due_every(TIME_LOGGED_EVERY_MS)
    }

    /// The same, if cell time is logged at this interval.
    pub fn next_entry_due_every(&self, interval_ms: u64) -> Option<CellTime> {
        let logs_time = self.depends_on_time() && !mutation::is_on(Mutation::TimeNotLogged);
        let time = logs_time.then(|| self.now.plus_ms(interval_ms));
        match (self.next_wake(), time) {
            (Some(wake), Some(time)) => Some(wake.min(time)),
            (wake, time) => wake.or(time),
        }
    }

    /// Whether anything depends on cell time: a session, a grant, a wait, a lock-delay, a rate limiter that is not full, or
    /// an event that waits for its UTC. Other events of the history do not count: they have UTC.
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
