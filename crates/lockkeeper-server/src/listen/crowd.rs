//! How many connections are served: in all, from one address, and without having said anything. A flood of new
//! connections costs the oldest of those that have not spoken yet, so that whoever does speak gets in.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::security::CrowdLimits;

/// All connections of a port.
#[derive(Debug, Clone)]
pub(super) struct Crowd {
    limits: CrowdLimits,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
    /// Those that have not said anything, in the order in which they came. Dropping one's sender ends it.
    unheard: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
}

/// A connection's place among the others.
#[derive(Debug)]
pub(super) struct Seat {
    crowd: Crowd,
    address: Option<IpAddr>,
    number: u64,
    /// Ends when a newer connection needs the place of one that has not spoken.
    pub(super) pushed_out: oneshot::Receiver<()>,
}

impl Crowd {
    pub(super) fn new(limits: CrowdLimits) -> Crowd {
        Crowd { limits, inner: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection, or the reason why there is none.
    pub(super) fn enter(&self, address: Option<IpAddr>) -> Result<Seat, &'static str> {
        let mut inner = self.inner();
        if inner.total >= self.limits.connections_max {
            return Err("connections");
        }
        if let Some(address) = address {
            let there = inner.by_address.entry(address).or_default();
            if *there >= self.limits.per_address_max {
                return Err("connections_of_address");
            }
            *there += 1;
        }
        inner.total += 1;
        let number = inner.next;
        inner.next += 1;
        let (stays, pushed_out) = oneshot::channel();
        inner.unheard.insert(number, stays);
        if inner.unheard.len() > self.limits.unheard_max {
            inner.unheard.pop_first();
        }
        Ok(Seat { crowd: self.clone(), address, number, pushed_out })
    }
}

impl Seat {
    /// It has spoken: it stays.
    pub(super) fn heard(&mut self) {
        // Its end is the same as being pushed out, so nobody must look at it any more.
        self.crowd.inner().unheard.remove(&self.number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.crowd.inner();
        inner.total -= 1;
        inner.unheard.remove(&self.number);
        if let Some(address) = self.address
            && let Some(there) = inner.by_address.get_mut(&address)
        {
            *there -= 1;
            if *there == 0 {
                inner.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd() -> Crowd {
        Crowd::new(CrowdLimits { connections_max: 10, per_address_max: 6, unheard_max: 3 })
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some([127, 0, 0, last].into())
    }

    #[test]
    fn there_is_a_bound_for_all_and_for_one_address() {
        let crowd = crowd();
        let mut seats = Vec::new();
        for _ in 0..6 {
            seats.push(crowd.enter(address(1)).unwrap());
        }
        assert_eq!(crowd.enter(address(1)).unwrap_err(), "connections_of_address");
        for _ in 0..4 {
            seats.push(crowd.enter(address(2)).unwrap());
        }
        assert_eq!(crowd.enter(address(3)).unwrap_err(), "connections");
        seats.clear();
        assert!(crowd.inner().by_address.is_empty());
        assert!(crowd.enter(address(3)).is_ok());
    }

    #[test]
    fn the_oldest_that_has_not_spoken_makes_room() {
        let crowd = crowd();
        let mut spoke = crowd.enter(address(1)).unwrap();
        spoke.heard();
        let mut silent: Vec<Seat> = (0..3).map(|_| crowd.enter(address(1)).unwrap()).collect();
        let _newcomer = crowd.enter(address(1)).unwrap();
        assert!(
            silent[0].pushed_out.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Closed)
        );
        assert!(silent[1].pushed_out.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Empty));
    }
}
