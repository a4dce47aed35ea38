//! Limits the number of connections by kind. A new connection has a kind of its own until its first bytes show its purpose,
//! so that idle clients do not block other kinds:
//!
//! | kind | limit | lifetime |
//! |---|---|---|
//! | new | `silent_max`; above it the oldest is closed | 10 s |
//! | client | `connections_max` in total, `per_address_max` from one address | unlimited |
//! | member | `MEMBERS_MAX` | unlimited |
//! | overflow: HTTP while all client connections are in use | `OVERFLOW_MAX` | 5 s, for health checks and administrators |
//! | administrator, promoted from overflow | `ADMINISTRATORS_MAX` | unlimited |

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::security::ConnectionLimits;

/// At most six other members have a few connections each.
const MEMBERS_MAX: usize = 128;
const OVERFLOW_MAX: usize = 256;
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
    next: u64,
}

/// A connection's slot in the limiter.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    address: Option<IpAddr>,
    number: u64,
    kind: Kind,
    /// Resolves when a newer connection evicts this one, which has sent nothing yet.
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
            let clients = self.by_address.entry(address).or_default();
            if *clients >= limits.per_address_max {
                return Err("connections_of_address");
            }
            *clients += 1;
        }
        *count += 1;
        Ok(())
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

    /// Moves to another kind. If that is full, keeps its kind and returns the reason.
    pub(super) fn move_to(&mut self, kind: Kind) -> Result<(), &'static str> {
        if self.kind == kind {
            return Ok(());
        }
        let mut inner = self.limiter.inner();
        inner.take(&self.limiter.limits, kind, self.address)?;
        inner.give_back(self.kind, self.address);
        // Dropping the sender resolves `evicted`, so it must not be polled from now on.
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
        assert_eq!(limiter.inner().counts[&Kind::Overflow], 0);
    }

    #[test]
    fn oldest_silent_connection_is_evicted() {
        let limiter = limiter();
        let _client = client(&limiter, 1).unwrap();
        let mut silent: Vec<ConnectionPermit> = (0..3).map(|_| limiter.enter(address(1))).collect();
        let _newcomer = limiter.enter(address(1));
        assert!(silent[0].evicted.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Closed));
        assert!(silent[1].evicted.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Empty));
    }
}
