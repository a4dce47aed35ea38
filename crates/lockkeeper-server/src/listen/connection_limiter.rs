//! How many connections are served, by what they are for. A new connection has a place of its own kind until its first
//! bytes tell what it is for, so that clients that are idle keep nobody else out:
//!
//! | kind | how many | for how long |
//! |---|---|---|
//! | new | `silent_max`; beyond it the oldest of them is closed | 10 s |
//! | client | `connections_max` in all, `per_address_max` from one address | as long as it likes |
//! | member | `MEMBERS_MAX` | as long as it likes |
//! | overflow: HTTP when all places for clients are taken | `OVERFLOW_MAX` | 5 s, for health checks and administrators |
//! | administrator, out of the overflow | `ADMINISTRATORS_MAX` | as long as it likes |

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::security::ConnectionLimits;

/// Each of at most six other members has a few.
const MEMBERS_MAX: usize = 128;
const OVERFLOW_MAX: usize = 256;
const ADMINISTRATORS_MAX: usize = 16;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    New,
    Client,
    Member,
    Overflow,
    Administrator,
}

/// All connections of a port.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimiter {
    limits: ConnectionLimits,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    counts: HashMap<Kind, usize>,
    /// Clients alone.
    by_address: HashMap<IpAddr, usize>,
    /// Those that have not said anything, in the order in which they came. Dropping one's sender ends it.
    new: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
}

/// A connection's place among the others.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    address: Option<IpAddr>,
    number: u64,
    kind: Kind,
    /// Ends when a newer connection needs the place of one that has not spoken.
    pub(super) evicted: oneshot::Receiver<()>,
}

impl ConnectionLimiter {
    pub(super) fn new(limits: ConnectionLimits) -> ConnectionLimiter {
        ConnectionLimiter { limits, inner: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. It has to move on as soon as it is known what it is for.
    pub(super) fn enter(&self, address: Option<IpAddr>) -> ConnectionPermit {
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        let (stays, evicted) = oneshot::channel();
        inner.new.insert(number, stays);
        if inner.new.len() > self.limits.silent_max {
            inner.new.pop_first();
        }
        ConnectionPermit { limiter: self.clone(), address, number, kind: Kind::New, evicted }
    }
}

impl Inner {
    fn take(
        &mut self,
        limits: &ConnectionLimits,
        kind: Kind,
        address: Option<IpAddr>,
    ) -> Result<(), &'static str> {
        let most = match kind {
            Kind::New => return Ok(()),
            Kind::Client => limits.connections_max,
            Kind::Member => MEMBERS_MAX,
            Kind::Overflow => OVERFLOW_MAX,
            Kind::Administrator => ADMINISTRATORS_MAX,
        };
        let count = self.counts.entry(kind).or_default();
        if *count >= most {
            return Err("connections");
        }
        if let (Kind::Client, Some(address)) = (kind, address) {
            let there = self.by_address.entry(address).or_default();
            if *there >= limits.per_address_max {
                return Err("connections_of_address");
            }
            *there += 1;
        }
        *count += 1;
        Ok(())
    }

    fn give_back(&mut self, kind: Kind, address: Option<IpAddr>) {
        if let Some(count) = self.counts.get_mut(&kind) {
            *count -= 1;
        }
        if let (Kind::Client, Some(address)) = (kind, address)
            && let Some(there) = self.by_address.get_mut(&address)
        {
            *there -= 1;
            if *there == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

impl ConnectionPermit {
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Moves among those of another kind; if there is no place, it stays where it is, and the reason is told.
    pub(super) fn move_to(&mut self, kind: Kind) -> Result<(), &'static str> {
        if self.kind == kind {
            return Ok(());
        }
        let mut inner = self.limiter.inner();
        inner.take(&self.limiter.limits, kind, self.address)?;
        inner.give_back(self.kind, self.address);
        // Its end is the same as being pushed out, so nobody must look at it any more.
        inner.new.remove(&self.number);
        self.kind = kind;
        Ok(())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut inner = self.limiter.inner();
        inner.new.remove(&self.number);
        inner.give_back(self.kind, self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> ConnectionLimiter {
        ConnectionLimiter::new(ConnectionLimits { connections_max: 10, per_address_max: 6, silent_max: 3 })
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some([127, 0, 0, last].into())
    }

    fn client(limiter: &ConnectionLimiter, last: u8) -> Result<ConnectionPermit, &'static str> {
        let mut permit = limiter.enter(address(last));
        permit.move_to(Kind::Client)?;
        Ok(permit)
    }

    #[test]
    fn there_is_a_bound_for_all_clients_and_for_those_of_one_address() {
        let limiter = limiter();
        let mut seats: Vec<ConnectionPermit> = (0..6).map(|_| client(&limiter, 1).unwrap()).collect();
        assert_eq!(client(&limiter, 1).unwrap_err(), "connections_of_address");
        seats.extend((0..4).map(|_| client(&limiter, 2).unwrap()));
        assert_eq!(client(&limiter, 3).unwrap_err(), "connections");
        seats.clear();
        assert!(limiter.inner().by_address.is_empty());
        assert!(limiter.inner().counts.values().all(|count| *count == 0));
        assert!(client(&limiter, 3).is_ok());
    }

    #[test]
    fn clients_do_not_take_the_places_of_members_and_probes() {
        let limiter = limiter();
        let _clients: Vec<ConnectionPermit> = (0..10).map(|at| client(&limiter, at / 5).unwrap()).collect();
        let mut member = limiter.enter(address(1));
        member.move_to(Kind::Member).unwrap();
        let mut probe = limiter.enter(address(1));
        assert!(probe.move_to(Kind::Client).is_err());
        assert_eq!(probe.kind(), Kind::New);
        probe.move_to(Kind::Overflow).unwrap();
        probe.move_to(Kind::Administrator).unwrap();
        assert_eq!(limiter.inner().counts[&Kind::Overflow], 0);
    }

    #[test]
    fn the_oldest_that_has_not_spoken_makes_room() {
        let limiter = limiter();
        let _spoke = client(&limiter, 1).unwrap();
        let mut silent: Vec<ConnectionPermit> = (0..3).map(|_| limiter.enter(address(1))).collect();
        let _newcomer = limiter.enter(address(1));
        assert!(silent[0].evicted.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Closed));
        assert!(silent[1].evicted.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Empty));
    }
}
