//! Events that are no longer recent: the last ones of each lock, in a ring buffer per lock.

use std::collections::VecDeque;
use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::{EVENTS_MAX, EVENTS_PER_LOCK_MAX, LockEvent};
use crate::id::LockName;
use crate::weighed::LogicalBytes;

/// The last events of one lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ring {
    events: VecDeque<LockEvent>,
    /// Number of its last event.
    last: u64,
    // Invariant: its key in `Rings::order`, not above `last`.
    listed: u64,
}

impl LogicalBytes for Ring {
    fn logical_bytes(&self) -> u64 {
        self.events.iter().map(LogicalBytes::logical_bytes).sum()
    }
}

/// The rings of all locks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Rings {
    // Shared until changed, so that a copy of the table does not copy the events.
    rings: OrdMap<LockName, Arc<Ring>>,
    /// Locks by the number of an event that was once their last. Updated lazily on eviction, not at every event.
    order: OrdMap<u64, LockName>,
    // Invariant: the number of events in all rings.
    count: usize,
    // Invariant: the logical bytes of all rings.
    bytes: u64,
    /// Number of the next event.
    pub(super) next: u64,
}

impl Rings {
    pub(super) fn push(&mut self, lock: LockName, event: LockEvent) {
        let number = self.next;
        self.next += 1;
        self.bytes += event.logical_bytes();
        match self.rings.get_mut(&lock) {
            Some(ring) => {
                let ring = Arc::make_mut(ring);
                if ring.events.len() == EVENTS_PER_LOCK_MAX {
                    self.bytes -= ring.events.pop_front().map_or(0, |oldest| oldest.logical_bytes());
                } else {
                    self.count += 1;
                }
                ring.events.push_back(event);
                ring.last = number;
            }
            None => {
                let ring = Ring { events: VecDeque::from([event]), last: number, listed: number };
                self.bytes += lock.logical_bytes();
                self.rings.insert(lock.clone(), Arc::new(ring));
                self.order.insert(number, lock);
                self.count += 1;
            }
        }
        while self.count > EVENTS_MAX {
            self.forget_oldest();
        }
    }

    /// Evicts the lock whose last event is the oldest. A lock that had events since it was listed is listed again, which
    /// costs what was saved at those events.
    fn forget_oldest(&mut self) {
        let Some((listed, lock)) = self.order.get_min().cloned() else { return };
        self.order.remove(&listed);
        let Some(ring) = self.rings.get_mut(&lock) else { return };
        if ring.last > listed {
            let ring = Arc::make_mut(ring);
            ring.listed = ring.last;
            self.order.insert(ring.last, lock);
        } else if let Some(ring) = self.rings.remove(&lock) {
            self.count -= ring.events.len();
            self.bytes -= lock.logical_bytes() + ring.logical_bytes();
        }
    }

    /// The events of a lock, newest first.
    pub(super) fn of<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = &'a LockEvent> + use<'a> {
        self.rings.get(lock).into_iter().flat_map(|ring| ring.events.iter().rev())
    }

    /// The number of events.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The logical bytes of all rings.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same, recounted.
    pub(crate) fn count_bytes(&self) -> u64 {
        self.rings.iter().map(|(lock, ring)| lock.logical_bytes() + ring.logical_bytes()).sum()
    }

    /// The number of locks with a ring.
    pub(super) fn locks(&self) -> usize {
        self.rings.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&LockName, &Ring)> {
        self.rings.iter().map(|(lock, ring)| (lock, &**ring))
    }

    /// Restores a ring from a snapshot; true if the lock or its number is a duplicate.
    pub(super) fn restore(&mut self, lock: LockName, ring: Ring) -> bool {
        self.count += ring.events.len();
        self.bytes += lock.logical_bytes() + ring.logical_bytes();
        let listed = self.order.insert(ring.listed, lock.clone()).is_some();
        self.rings.insert(lock, Arc::new(ring)).is_some() || listed
    }
}
