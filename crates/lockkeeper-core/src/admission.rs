//! Admission (S7): what a request takes of a lock, and who holds the lock. The lock table and the engines on other
//! servers decide by the same rule.
//!
//! Requests are admitted in the order in which they came. One that does not fit waits, and so does everyone behind it:
//! nobody overtakes.

use crate::command::Mode;
use crate::refusal::Refusal;

/// The capacity of a lock that nobody counts: an exclusive request takes all of it, a shared one takes one unit.
/// People see it as capacity 1.
pub const UNCOUNTED: u32 = u32::MAX;

/// What a request takes of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// The units taken while the lock is held.
    pub units: u32,
    /// The capacity that the lock has meanwhile.
    pub capacity: u32,
}

impl Demand {
    /// All of a lock that nobody counts.
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
            Some(0) => return Err(Refusal::invalid("capacity is 0: nobody could ever hold such a lock")),
            Some(1) => Some(UNCOUNTED),
            other => other,
        };
        let capacity = requested.or(in_use).unwrap_or(UNCOUNTED);
        check_capacity(capacity, in_use)?;
        let counted = capacity != UNCOUNTED;
        let units = match (permits, mode) {
            (Some(0), _) => return Err(Refusal::invalid("permits is 0: ask for at least one")),
            (Some(permits), _) if counted && permits <= capacity => permits,
            (Some(1) | None, Mode::Shared) => 1,
            (Some(1) | None, Mode::Exclusive) => capacity,
            (Some(permits), _) => {
                return Err(Refusal::invalid(format!(
                    "{permits} permits are more than the capacity {}: name a larger capacity",
                    shown(capacity)
                )));
            }
        };
        Ok(Demand { units, capacity })
    }

    /// Takes the whole lock.
    pub fn is_whole(self) -> bool {
        self.units == self.capacity
    }

    /// The lock has permits that are counted.
    pub fn is_counted(self) -> bool {
        self.capacity != UNCOUNTED
    }

    /// Whether a request holds the lock behind these earlier ones. A request that waits has more before it than fits,
    /// so the sum exceeds the capacity for everyone behind it as well.
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

/// How many at the head of a queue hold the lock.
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

/// A capacity as people see it.
pub fn shown(capacity: u32) -> u32 {
    if capacity == UNCOUNTED { 1 } else { capacity }
}

fn check_capacity(requested: u32, in_use: Option<u32>) -> Result<(), Refusal> {
    match in_use {
        Some(in_use) if in_use != requested => Err(Refusal::invalid(format!(
            "the lock is in use with capacity {}: ask for that one, or for none",
            shown(in_use)
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
    fn a_demand_follows_from_mode_permits_and_capacity() {
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
    fn nobody_overtakes_a_request_that_waits() {
        let admitted = |mine: Demand, earlier: &[Demand]| mine.is_admitted_behind(earlier.iter().copied());
        assert_eq!(admitted(Demand::EXCLUSIVE, &[]), Ok(true));
        assert_eq!(admitted(SHARED, &[SHARED, SHARED]), Ok(true));
        assert_eq!(admitted(Demand::EXCLUSIVE, &[SHARED]), Ok(false));
        assert_eq!(admitted(SHARED, &[Demand::EXCLUSIVE]), Ok(false));
        // A writer waits behind a reader: the next reader waits behind the writer.
        assert_eq!(admitted(SHARED, &[SHARED, Demand::EXCLUSIVE]), Ok(false));
        assert_eq!(admitted(ONE_OF_THREE, &[TWO_OF_THREE]), Ok(true));
        // Two of three wait behind two of three: one would fit, but came later.
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
