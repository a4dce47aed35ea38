//! What an entry takes of a lock, and who is let in: the same rule as in the cell (S7), for queues that all can see.

use std::fmt;
use std::str::FromStr;

use super::Queued;
use crate::engines::Ask;
use crate::error::Error;
use crate::mode::Mode;
use crate::view::{Holder, LockState, Waiter};

/// The capacity of a lock that nobody counted: exclusive takes all of it, shared takes one unit.
const UNCOUNTED: u32 = u32::MAX;

/// What an entry takes: written into its name, so that a list of names is enough to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) mode: Mode,
    pub(crate) units: u32,
    pub(crate) capacity: u32,
}

impl Shape {
    pub(crate) const EXCLUSIVE: Shape =
        Shape { mode: Mode::Exclusive, units: UNCOUNTED, capacity: UNCOUNTED };

    /// What a request asks for. It was checked before.
    pub(crate) fn of(ask: &Ask) -> Shape {
        match (ask.capacity, ask.mode) {
            (Some(capacity), mode) if capacity > 1 => {
                Shape { mode, units: ask.permits.unwrap_or(1), capacity }
            }
            (_, Mode::Shared) => Shape { mode: Mode::Shared, units: 1, capacity: UNCOUNTED },
            (_, Mode::Exclusive) => Shape::EXCLUSIVE,
        }
    }

    pub(crate) fn is_exclusive(self) -> bool {
        self.units == self.capacity
    }

    pub(crate) fn is_counted(self) -> bool {
        self.capacity != UNCOUNTED
    }

    fn capacity_shown(self) -> u32 {
        if self.is_counted() { self.capacity } else { 1 }
    }

    fn permits_shown(self) -> u32 {
        if self.is_counted() { self.units } else { 1 }
    }
}

/// `x`, `s`, or `c<capacity>.<permits>` with a mode behind it.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Exclusive => 'x',
            Mode::Shared => 's',
        };
        if self.is_counted() {
            write!(f, "c{}.{}{mode}", self.capacity, self.units)
        } else {
            write!(f, "{mode}")
        }
    }
}

impl FromStr for Shape {
    type Err = ();

    fn from_str(text: &str) -> Result<Shape, ()> {
        let mode = match text.chars().last() {
            Some('x') => Mode::Exclusive,
            Some('s') => Mode::Shared,
            _ => return Err(()),
        };
        match (text, mode) {
            ("x", _) => Ok(Shape::EXCLUSIVE),
            ("s", _) => Ok(Shape { mode, units: 1, capacity: UNCOUNTED }),
            (counted, _) => {
                let numbers = counted.strip_prefix('c').ok_or(())?;
                let (capacity, units) = numbers[..numbers.len() - 1].split_once('.').ok_or(())?;
                let (capacity, units) = (capacity.parse().map_err(|_| ())?, units.parse().map_err(|_| ())?);
                Ok(Shape { mode, units, capacity })
            }
        }
    }
}

/// How much of the lock those before an entry take: it is let in if what it takes still fits. An earlier one that
/// waits has more before it than fits, so the sum is above the capacity for all behind it: nobody overtakes.
///
/// # Errors
///
/// `Invalid` if one of them counts the lock otherwise.
pub(crate) fn earlier_units(mine: Shape, earlier: impl IntoIterator<Item = Shape>) -> Result<u64, Error> {
    let mut sum = 0;
    for shape in earlier {
        if shape.capacity != mine.capacity {
            return Err(Error::invalid(format!(
                "the lock is in use with capacity {}: ask for that one",
                shape.capacity_shown()
            )));
        }
        sum += u64::from(shape.units);
    }
    Ok(sum)
}

impl Shape {
    /// Whether it is let in behind entries that take so much.
    pub(crate) fn fits_behind(self, earlier: u64) -> bool {
        earlier + u64::from(self.units) <= u64::from(self.capacity)
    }
}

/// The lock as people see it.
pub(crate) fn state_of(lock: &str, queue: &[Queued]) -> LockState {
    let mut state = LockState {
        lock: lock.to_owned(),
        capacity: queue.first().map_or(1, |first| first.shape.capacity_shown()),
        last_token: 0,
        holders: Vec::new(),
        queue: Vec::new(),
        waiting: 0,
        closed: Default::default(),
    };
    let mut sum = 0;
    for entry in queue {
        let shape = entry.shape;
        if state.waiting == 0 && shape.fits_behind(sum) {
            state.last_token = state.last_token.max(entry.token);
            state.holders.push(Holder {
                session: entry.session.clone(),
                token: entry.token,
                mode: shape.mode,
                owner: entry.owner.clone(),
                held: entry.since,
                permits: shape.permits_shown(),
                ..Holder::default()
            });
        } else {
            state.queue.push(Waiter {
                session: entry.session.clone(),
                position: state.waiting + 1,
                mode: shape.mode,
                owner: entry.owner.clone(),
                waited: entry.since,
                ..Waiter::default()
            });
            state.waiting += 1;
        }
        sum += u64::from(shape.units);
    }
    state
}
