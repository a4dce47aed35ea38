//! Admission (S7): how much of a lock a request takes, and which requests hold the lock. The lock table and the engines on
//! other servers use the same rule.
//!
//! Requests are admitted in order of arrival. A request that does not fit waits, and so do all requests behind it: none
//! overtakes.

use crate::command::Mode;
use crate::refusal::Refusal;

/// The capacity of an uncounted lock: an exclusive request takes all of it, a shared one takes one unit. Displayed as
/// capacity 1.
pub const UNCOUNTED: u32 = u32::MAX;

/// The share of a lock that a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// The units taken while the lock is held.
    pub units: u32,
    /// The capacity of the lock while it is held.
    pub capacity: u32,
}

impl Demand {
    /// The whole of an uncounted lock.
    pub const EXCLUSIVE: Demand = Demand { units: UNCOUNTED, capacity: UNCOUNTED };

    /// The demand of a request for a lock. `in_use` is the capacity that the lock has while it is held or waited for;
    /// `None` if it is free.
    ///
    /// # Errors
    ///
    /// `Invalid` if the request contradicts itself or the capacity in use.
    pub fn of(
        mode: Mode,
        permits: Option<u32>,
        capacity: Option<u32>,
        in_use: Option<u32>,
    ) -> Result<Demand, Refusal> {
        let requested = match capacity {
            Some(0) => return Err(Refusal::invalid("capacity must be at least 1")),
            Some(1) => Some(UNCOUNTED),
            other => other,
        };
        let capacity = requested.or(in_use).unwrap_or(UNCOUNTED);
        check_capacity(capacity, in_use)?;
        let counted = capacity != UNCOUNTED;
        let units = match (permits, mode) {
            (Some(0), _) => return Err(Refusal::invalid("permits must be at least 1")),
            (Some(permits), _) if counted && permits <= capacity => permits,
            (Some(1) | None, Mode::Shared) => 1,
            (Some(1) | None, Mode::Exclusive) => capacity,
            (Some(permits), _) => {
                return Err(Refusal::invalid(format!(
                    "{permits} permits are more than the capacity {}: name a larger capacity",
                    displayed(capacity)
                )));
            }
        };
        Ok(Demand { units, capacity })
    }

    /// Whether it takes the whole lock.
    pub fn is_whole(self) -> bool {
        self.units == self.capacity
    }

    /// Whether the lock counts permits.
    pub fn is_counted(self) -> bool {
        self.capacity != UNCOUNTED
    }

    /// Whether a request holds the lock behind these earlier requests. The requests up to a waiting one exceed the capacity,
    /// so every request behind it waits too.
    ///
    /// # Errors
    ///
    /// `Invalid` if an earlier one has another capacity.
    pub fn is_admitted_behind(self, earlier: impl IntoIterator<Item = Demand>) -> Result<bool, Refusal> {
        let mut used = 0;
        for demand in earlier {
            check_capacity(self.capacity, Some(demand.capacity))?;
            used += u64::from(demand.units);
        }
        Ok(admits(self.capacity, used, self.units))
    }
}

/// The rule of admission: `units` fit into what `used` leaves of `capacity`.
pub fn admits(capacity: u32, used: u64, units: u32) -> bool {
    used + u64::from(units) <= u64::from(capacity)
}

/// How many requests at the head of a queue hold the lock.
pub fn holders(queue: impl IntoIterator<Item = Demand>) -> usize {
    let mut used = 0;
    queue
        .into_iter()
        .take_while(|demand| {
            let is_admitted = admits(demand.capacity, used, demand.units);
            used += u64::from(demand.units);
            is_admitted
        })
        .count()
}

/// The capacity to display: 1 for an uncounted lock.
pub fn displayed(capacity: u32) -> u32 {
    if capacity == UNCOUNTED { 1 } else { capacity }
}

fn check_capacity(requested: u32, in_use: Option<u32>) -> Result<(), Refusal> {
    match in_use {
        Some(in_use) if in_use != requested => Err(Refusal::invalid(format!(
            "the lock is in use with capacity {}: request that capacity, or leave it out",
            displayed(in_use)
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Demand = Demand { units: 1, capacity: UNCOUNTED };
    const TWO_OF_THREE: Demand = Demand { units: 2, capacity: 3 };
    const ONE_OF_THREE: Demand = Demand { units: 1, capacity: 3 };

    #[test]
    fn demand_follows_from_mode_permits_and_capacity() {
        let of = |mode, permits, capacity| Demand::of(mode, permits, capacity, None);
        assert_eq!(of(Mode::Exclusive, None, None), Ok(Demand::EXCLUSIVE));
        assert_eq!(of(Mode::Exclusive, Some(1), Some(1)), Ok(Demand::EXCLUSIVE));
        assert_eq!(of(Mode::Shared, None, None), Ok(SHARED));
        assert_eq!(of(Mode::Exclusive, Some(2), Some(3)), Ok(TWO_OF_THREE));
        for (permits, capacity) in [(Some(0), None), (None, Some(0)), (Some(2), None), (Some(4), Some(3))] {
            assert!(of(Mode::Exclusive, permits, capacity).is_err(), "{permits:?} of {capacity:?}");
        }
        assert_eq!(Demand::of(Mode::Exclusive, Some(1), None, Some(3)), Ok(ONE_OF_THREE));
        assert!(Demand::of(Mode::Exclusive, None, Some(5), Some(3)).is_err(), "another capacity is in use");
    }

    #[test]
    fn later_requests_wait_behind_a_waiting_one() {
        let admitted = |mine: Demand, earlier: &[Demand]| mine.is_admitted_behind(earlier.iter().copied());
        assert_eq!(admitted(Demand::EXCLUSIVE, &[]), Ok(true));
        assert_eq!(admitted(SHARED, &[SHARED, SHARED]), Ok(true));
        assert_eq!(admitted(Demand::EXCLUSIVE, &[SHARED]), Ok(false));
        assert_eq!(admitted(SHARED, &[Demand::EXCLUSIVE]), Ok(false));
        // A writer waits behind a reader, and the next reader behind the writer.
        assert_eq!(admitted(SHARED, &[SHARED, Demand::EXCLUSIVE]), Ok(false));
        assert_eq!(admitted(ONE_OF_THREE, &[TWO_OF_THREE]), Ok(true));
        // A request for two of three waits behind another: a later request for one would fit, but waits too.
        assert_eq!(admitted(ONE_OF_THREE, &[TWO_OF_THREE, TWO_OF_THREE]), Ok(false));
        assert!(admitted(SHARED, &[TWO_OF_THREE]).is_err(), "another capacity");
    }

    #[test]
    fn holders_are_at_the_head_of_the_queue() {
        assert_eq!(holders([]), 0);
        assert_eq!(holders([SHARED, SHARED, Demand::EXCLUSIVE, SHARED]), 2);
        assert_eq!(holders([TWO_OF_THREE, TWO_OF_THREE, ONE_OF_THREE]), 1);
        assert_eq!(holders([TWO_OF_THREE, ONE_OF_THREE, ONE_OF_THREE]), 2);
    }
}
