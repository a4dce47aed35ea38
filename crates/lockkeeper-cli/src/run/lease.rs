//! The times at which the command is ended, derived from the deadline of its lease.
//!
//! ```text
//!   renewed                    deadline - kill_after     deadline - margin   deadline
//!      |--------------------------------|----------------------|----------------|
//!                                      TERM                   KILL      the lease may pass on
//! ```

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::duration::humanize;

/// The clock of the guard's deadline. It counts the time in which the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The current time on that clock.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(CLOCK);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs().try_into().unwrap_or(0))
}

/// The margins before the deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Margins {
    /// From TERM to KILL.
    pub(crate) kill_after: Duration,
    /// From KILL to the deadline: allows for a delayed wake-up of this process on a busy machine.
    margin: Duration,
}

impl Margins {
    pub(crate) fn new(ttl: Duration, kill_after: Option<Duration>) -> Result<Margins, String> {
        // A renewal is sent every third of the TTL. With more than half of the TTL reserved for the end, one late renewal
        // would end the command.
        if let Some(kill_after) = kill_after
            && kill_after > ttl / 2
        {
            return Err(format!(
                "--kill-after {} is too long for --ttl {}: use at most half of it, {}",
                humanize(kill_after),
                humanize(ttl),
                humanize(ttl / 2)
            ));
        }
        let margin = (ttl / 50).clamp(Duration::from_millis(10), Duration::from_millis(250));
        let kill_after = kill_after.unwrap_or_else(|| (ttl / 4).min(Duration::from_secs(5)));
        Ok(Margins { kill_after: kill_after.max(margin), margin })
    }

    /// When TERM is due if the lease ends at `deadline`.
    pub(crate) fn term_at(self, deadline: Duration) -> Duration {
        deadline.saturating_sub(self.kill_after)
    }

    /// When KILL is due after a TERM at `now`.
    pub(crate) fn kill_at(self, now: Duration, deadline: Duration) -> Duration {
        (now + self.kill_after).min(deadline.saturating_sub(self.margin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn kill_comes_before_the_deadline_and_term_before_kill() {
        for ttl_ms in [100, 500, 1_000, 10_000, 600_000] {
            let ttl = Duration::from_millis(ttl_ms);
            let margins = Margins::new(ttl, None).unwrap();
            let deadline = secs(1_000);
            let term = margins.term_at(deadline);
            let kill = margins.kill_at(term, deadline);
            assert!(term <= kill && kill < deadline, "{ttl_ms}: {term:?} {kill:?}");
            // Two renewals can be missed before anything happens.
            assert!(deadline - term <= ttl / 3, "{ttl_ms}");
        }
    }

    #[test]
    fn force_release_leaves_the_full_kill_after() {
        let margins = Margins::new(secs(10), Some(secs(2))).unwrap();
        assert_eq!(margins.kill_at(secs(100), secs(108)), secs(102));
    }

    #[test]
    fn kill_is_due_at_once_after_a_long_suspend() {
        let margins = Margins::new(secs(10), None).unwrap();
        assert!(margins.kill_at(secs(500), secs(108)) < secs(500));
    }

    #[test]
    fn kill_after_is_at_most_half_of_the_ttl() {
        assert!(Margins::new(secs(10), Some(secs(5))).is_ok());
        assert!(Margins::new(secs(10), Some(secs(6))).unwrap_err().contains("5 s"));
    }
}
