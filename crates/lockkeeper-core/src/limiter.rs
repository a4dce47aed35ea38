//! Shared rate limiters: the generic cell rate algorithm (GCRA) in cell time. The state of a limiter is the time at which
//! all its permits are available again. Limiters whose time has passed are forgotten.

use crate::effect::{Answer, Reply};
use crate::limits;
use crate::refusal::Refusal;
use crate::table::LockTable;
use crate::weighed::{LogicalBytes, RECORD};
use smol_str::SmolStr;

/// Expired limiters that are removed with each take.
const CLEARED_PER_TAKE: usize = 2;

/// A request for permits of a rate.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TakeRate {
    /// The limiter's name.
    pub limiter: SmolStr,
    /// The number of permits, all or none.
    pub permits: u64,
    /// The time between two permits, in nanoseconds.
    pub interval_ns: u64,
    /// The maximum number of permits at once after a pause.
    pub burst: u64,
}

impl LockTable {
    pub(crate) fn take_rate(&mut self, take: &TakeRate) -> Answer {
        limits::check_name("name of the limiter", &take.limiter)?;
        limits::check_range("burst", take.burst, 1, limits::BURST_MAX)?;
        limits::check_range("permits", take.permits, 1, take.burst)?;
        limits::check_range(
            "the time between two permits in ns",
            take.interval_ns,
            1,
            limits::INTERVAL_NS_MAX,
        )?;
        let now = self.now.as_nanoseconds();
        self.clear_limiters(now);
        let known = self.limiters.get(&take.limiter).copied();
        if known.is_none() && self.limiters.len() >= limits::LIMITERS_MAX {
            return Err(Refusal::limit(format!(
                "the cell has {} rate limiters in use, its limit: use fewer names",
                limits::LIMITERS_MAX
            )));
        }
        let full_again =
            known.unwrap_or(0).max(now) + u128::from(take.permits) * u128::from(take.interval_ns);
        let earliest = full_again.saturating_sub(u128::from(take.burst) * u128::from(take.interval_ns));
        if earliest > now {
            // Rounded up, so that a retry after this time succeeds.
            let retry_after_ms = ((earliest - now).div_ceil(1_000_000)) as u64;
            return Ok(Reply::Rate { allowed: false, retry_after_ms });
        }
        if known.is_none() {
            self.check_state_bytes(RECORD + take.limiter.logical_bytes())?;
        }
        if let Some(known) = known {
            self.limiters_due.remove(&(known, take.limiter.clone()));
        }
        self.limiters.insert(take.limiter.clone(), full_again);
        self.limiters_due.insert((full_again, take.limiter.clone()));
        Ok(Reply::Rate { allowed: true, retry_after_ms: 0 })
    }

    fn clear_limiters(&mut self, now: u128) {
        for _ in 0..CLEARED_PER_TAKE {
            let Some((due, name)) = self.limiters_due.get_min().cloned() else { return };
            if due > now {
                return;
            }
            self.limiters_due.remove(&(due, name.clone()));
            self.limiters.remove(&name);
        }
    }
}
