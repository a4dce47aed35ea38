//! Limits the number of connections by kind. A new connection has a kind of its own until its first bytes show its purpose,
//! so that idle clients do not block other kinds:
//!
//! | kind | limit | lifetime |
//! |---|---|---|
//! | new | `silent_max`; above it the oldest is closed | 10 s |
//! | client | `connections_max` in total, `per_address_max` from one address | unlimited |
//! | member | `MEMBERS_MAX` | unlimited |
//! | overflow: HTTP while all client connections are in use | `OVERFLOW_MAX` in total, `OVERFLOW_PER_ADDRESS_MAX` from one address; above it one is closed | 5 s, for health checks and administrators |
//! | administrator, promoted from overflow | `ADMINISTRATORS_MAX`; above it they stay in overflow | unlimited |
//!
//! A new overflow connection is never refused, because it can be an administrator's: it closes an older one, first one
//! that has sent no request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::security::ConnectionLimits;

/// At most six other members have a few connections each.
const MEMBERS_MAX: usize = 128;
const OVERFLOW_MAX: usize = 256;
const OVERFLOW_PER_ADDRESS_MAX: usize = 64;
const ADMINISTRATORS_MAX: usize = 16;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    New,
    Client,
    Member,
    Overflow,
    Administrator,
}

/// Counts the connections of a port.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimiter {
    limits: ConnectionLimits,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    counts: HashMap<Kind, usize>,
    /// Counts clients only.
    by_address: HashMap<IpAddr, usize>,
    /// Connections that have sent nothing yet, oldest first. Dropping the sender closes the connection.
    new: BTreeMap<u64, oneshot::Sender<()>>,
    overflow: Overflow,
    next: u64,
}

/// Order in which overflow connections are closed: without a request before those with one, and the oldest first.
type OverflowKey = (bool, u64);

/// The overflow connections.
#[derive(Debug, Default)]
struct Overflow {
    /// Dropping the sender closes the connection.
    all: BTreeMap<OverflowKey, (Option<IpAddr>, oneshot::Sender<()>)>,
    by_address: HashMap<Option<IpAddr>, BTreeSet<OverflowKey>>,
}

impl Overflow {
    fn insert(&mut self, key: OverflowKey, address: Option<IpAddr>, stays: oneshot::Sender<()>) {
        self.all.insert(key, (address, stays));
        self.by_address.entry(address).or_default().insert(key);
    }

    fn remove(&mut self, key: OverflowKey) -> Option<(Option<IpAddr>, oneshot::Sender<()>)> {
        let removed = self.all.remove(&key)?;
        if let Some(keys) = self.by_address.get_mut(&removed.0) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_address.remove(&removed.0);
            }
        }
        Some(removed)
    }

    /// Closes a connection if one more from this address would be too many. A caller with many connections closes its own.
    fn make_room(&mut self, address: Option<IpAddr>) {
        let victim = match self.by_address.get(&address) {
            Some(keys) if keys.len() >= OVERFLOW_PER_ADDRESS_MAX => keys.first().copied(),
            _ if self.all.len() >= OVERFLOW_MAX => self.all.keys().next().copied(),
            _ => None,
        };
        if let Some(victim) = victim {
            drop(self.remove(victim));
        }
    }
}

/// A connection's slot in the limiter.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    address: Option<IpAddr>,
    number: u64,
    kind: Kind,
    has_request: bool,
    /// Resolves when a newer connection evicts this one, which has sent nothing yet or is an overflow connection. It also
    /// resolves when the connection moves from one of these kinds to another.
    pub(super) evicted: oneshot::Receiver<()>,
}

impl ConnectionLimiter {
    pub(super) fn new(limits: ConnectionLimits) -> ConnectionLimiter {
        ConnectionLimiter { limits, inner: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection. It must move to another kind once its purpose is known.
    pub(super) fn enter(&self, address: Option<IpAddr>) -> ConnectionPermit {
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        let (stays, evicted) = oneshot::channel();
        inner.new.insert(number, stays);
        if inner.new.len() > self.limits.silent_max {
            inner.new.pop_first();
        }
        let kind = Kind::New;
        ConnectionPermit { limiter: self.clone(), address, number, kind, has_request: false, evicted }
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
            Kind::New | Kind::Overflow => return Ok(()),
            Kind::Client => limits.connections_max,
            Kind::Member => MEMBERS_MAX,
            Kind::Administrator => ADMINISTRATORS_MAX,
        };
        let count = self.counts.entry(kind).or_default();
        if *count >= most {
            return Err("connections");
        }
        if let (Kind::Client, Some(address)) = (kind, address) {
            let clients = self.by_address.entry(address).or_default();
            if *clients >= limits.per_address_max {
                return Err("connections_of_address");
            }
            *clients += 1;
        }
        *count += 1;
        Ok(())
    }

    /// Removes a connection from its kind.
    fn leave(&mut self, kind: Kind, address: Option<IpAddr>, key: OverflowKey) {
        match kind {
            Kind::New => drop(self.new.remove(&key.1)),
            Kind::Overflow => drop(self.overflow.remove(key)),
            Kind::Client | Kind::Member | Kind::Administrator => self.give_back(kind, address),
        }
    }

    fn give_back(&mut self, kind: Kind, address: Option<IpAddr>) {
        if let Some(count) = self.counts.get_mut(&kind) {
            *count -= 1;
        }
        if let (Kind::Client, Some(address)) = (kind, address)
            && let Some(clients) = self.by_address.get_mut(&address)
        {
            *clients -= 1;
            if *clients == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

impl ConnectionPermit {
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Moves to another kind. If that is full, keeps its kind and returns the reason. Overflow is never full, and an
    /// administrator without a free slot stays there.
    pub(super) fn move_to(&mut self, kind: Kind) -> Result<(), &'static str> {
        if self.kind == kind {
            return Ok(());
        }
        let mut inner = self.limiter.inner();
        match inner.take(&self.limiter.limits, kind, self.address) {
            Err(_) if kind == Kind::Administrator && self.kind == Kind::Overflow => return Ok(()),
            taken => taken?,
        }
        // Dropping the sender resolves `evicted`, so it must not be polled from now on.
        inner.leave(self.kind, self.address, (self.has_request, self.number));
        self.kind = kind;
        if kind == Kind::Overflow {
            let (stays, evicted) = oneshot::channel();
            inner.overflow.make_room(self.address);
            inner.overflow.insert((self.has_request, self.number), self.address, stays);
            self.evicted = evicted;
        }
        Ok(())
    }

    /// Notes that the connection has sent a request: other overflow connections are closed before it.
    pub(super) fn note_request(&mut self) {
        if self.has_request {
            return;
        }
        self.has_request = true;
        let overflow = &mut self.limiter.inner().overflow;
        if let Some((address, stays)) = overflow.remove((false, self.number)) {
            overflow.insert((true, self.number), address, stays);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.inner().leave(self.kind, self.address, (self.has_request, self.number));
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
    fn clients_are_limited_in_total_and_per_address() {
        let limiter = limiter();
        let mut permits: Vec<ConnectionPermit> = (0..6).map(|_| client(&limiter, 1).unwrap()).collect();
        assert_eq!(client(&limiter, 1).unwrap_err(), "connections_of_address");
        permits.extend((0..4).map(|_| client(&limiter, 2).unwrap()));
        assert_eq!(client(&limiter, 3).unwrap_err(), "connections");
        permits.clear();
        assert!(limiter.inner().by_address.is_empty());
        assert!(limiter.inner().counts.values().all(|count| *count == 0));
        assert!(client(&limiter, 3).is_ok());
    }

    #[test]
    fn clients_do_not_use_up_the_slots_of_members_and_probes() {
        let limiter = limiter();
        let _clients: Vec<ConnectionPermit> = (0..10).map(|at| client(&limiter, at / 5).unwrap()).collect();
        let mut member = limiter.enter(address(1));
        member.move_to(Kind::Member).unwrap();
        let mut probe = limiter.enter(address(1));
        assert!(probe.move_to(Kind::Client).is_err());
        assert_eq!(probe.kind(), Kind::New);
        probe.move_to(Kind::Overflow).unwrap();
        probe.move_to(Kind::Administrator).unwrap();
        assert_no_overflow(&limiter);
    }

    fn overflow(limiter: &ConnectionLimiter, last: u8) -> ConnectionPermit {
        let mut permit = limiter.enter(address(last));
        permit.move_to(Kind::Overflow).unwrap();
        permit
    }

    fn assert_no_overflow(limiter: &ConnectionLimiter) {
        let inner = limiter.inner();
        assert!(inner.overflow.all.is_empty() && inner.overflow.by_address.is_empty());
    }

    fn is_evicted(permit: &mut ConnectionPermit) -> bool {
        permit.evicted.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn new_overflow_connection_evicts_the_oldest_one_without_a_request() {
        let limiter = limiter();
        let mut permits: Vec<ConnectionPermit> =
            (0..OVERFLOW_MAX).map(|at| overflow(&limiter, (at % 8) as u8)).collect();
        assert!(!permits.iter_mut().any(is_evicted));
        permits[0].note_request();
        permits.push(overflow(&limiter, 9));
        assert!(!is_evicted(&mut permits[0]) && is_evicted(&mut permits[1]) && !is_evicted(&mut permits[2]));
        // All of them have sent requests.
        permits.iter_mut().for_each(ConnectionPermit::note_request);
        permits.push(overflow(&limiter, 10));
        assert!(is_evicted(&mut permits[0]) && !is_evicted(&mut permits[2]));
        permits.clear();
        assert_no_overflow(&limiter);
    }

    #[test]
    fn one_address_evicts_its_own_overflow_connections() {
        let limiter = limiter();
        let mut other = overflow(&limiter, 1);
        let mut permits: Vec<ConnectionPermit> =
            (0..=OVERFLOW_PER_ADDRESS_MAX).map(|_| overflow(&limiter, 2)).collect();
        assert!(is_evicted(&mut permits[0]) && !is_evicted(&mut permits[1]) && !is_evicted(&mut other));
        assert_eq!(limiter.inner().overflow.all.len(), 1 + OVERFLOW_PER_ADDRESS_MAX);
    }

    #[test]
    fn administrators_above_their_slots_stay_in_overflow() {
        let limiter = limiter();
        let mut permits: Vec<ConnectionPermit> =
            (0..=ADMINISTRATORS_MAX).map(|_| overflow(&limiter, 1)).collect();
        for permit in &mut permits {
            permit.move_to(Kind::Administrator).unwrap();
        }
        assert_eq!(permits[ADMINISTRATORS_MAX - 1].kind(), Kind::Administrator);
        assert_eq!(permits[ADMINISTRATORS_MAX].kind(), Kind::Overflow);
    }

    #[test]
    fn oldest_silent_connection_is_evicted() {
        let limiter = limiter();
        let _client = client(&limiter, 1).unwrap();
        let mut silent: Vec<ConnectionPermit> = (0..3).map(|_| limiter.enter(address(1))).collect();
        let _newcomer = limiter.enter(address(1));
        assert!(is_evicted(&mut silent[0]));
        assert!(silent[1].evicted.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Empty));
    }
}
