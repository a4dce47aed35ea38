//! A byte budget for each connection and each identity. It covers the memory that the node keeps for them: queued answers of
//! a stream, bodies of HTTP answers that were not sent yet, and incomplete requests (S11).
//!
//! Above the budget of its connection, a read waits until the client has read earlier answers. Above the budget of its
//! identity, and on streams above either, reads are refused with `limit`, because their answers may be large. Everything else
//! is served: its answers are small, and renewals and releases are among it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::limits::arrivals::Arrivals;
use crate::limits::turns::{Lanes, TurnPermit};

/// Requests up to this size are accepted even above the budget of their identity: renewals and releases are small.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Budget of one connection. Larger than the largest message.
pub(crate) const CONNECTION_BYTES_MAX: usize = 6 << 20;
/// Budget of all connections of one identity. All unauthenticated callers count as one identity.
pub(crate) const IDENTITY_BYTES_MAX: usize = 128 << 20;
/// A connection whose client reads nothing of its queued answers is closed after this time.
pub(crate) const STALLED_FOR: Duration = Duration::from_secs(30);
/// What an observer of an election is counted with: its task or stream, its name and its timer.
pub(crate) const OBSERVER_BYTES: usize = 2 << 10;
/// Most observers of one connection.
pub(crate) const OBSERVERS_PER_CONNECTION_MAX: usize = 1_024;
/// Most observers of all connections of one identity. A quarter of its budget.
pub(crate) const OBSERVERS_PER_IDENTITY_MAX: usize = 16_384;
/// Most streams of one connection that watch the health of the node. They need no authentication.
pub(crate) const HEALTH_WATCHES_PER_CONNECTION_MAX: usize = 4;
/// Most streams of reflection on one connection. They need no authentication either.
pub(crate) const REFLECTIONS_PER_CONNECTION_MAX: usize = 4;
/// What a stream of reflection is counted with, besides its answers that are being sent: the library prepares two answers in
/// advance, each with a descriptor of 50 KiB.
const REFLECTION_BYTES: usize = 128 << 10;
/// When a refused caller should retry.
const RETRY_AFTER_MS: u64 = 1_000;
/// Above this number of identities, the budgets of unused ones are dropped.
const IDENTITIES_KEPT: usize = 1_024;

/// Counts bytes.
#[derive(Debug)]
struct Meter {
    used: AtomicUsize,
    max: usize,
    /// Notified when bytes are freed.
    freed: Notify,
    /// Notified when the first byte is counted.
    began: Notify,
}

impl Meter {
    fn new(max: usize) -> Meter {
        Meter { used: AtomicUsize::new(0), max, freed: Notify::new(), began: Notify::new() }
    }

    fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) < self.max
    }

    fn is_idle(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }

    fn add(&self, bytes: usize) {
        if bytes > 0 && self.used.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.began.notify_one();
        }
    }

    fn sub(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.freed.notify_waiters();
    }
}

/// Counts streams that wait for changes. Shared by clones.
#[derive(Debug, Clone, Default)]
struct Seats(Arc<AtomicUsize>);

impl Seats {
    /// Takes a seat, if fewer than `max` are taken.
    fn take(&self, max: usize) -> Option<Seat> {
        let free = |taken| (taken < max).then_some(taken + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        taken.is_ok().then(|| Seat(self.0.clone()))
    }
}

/// A seat, taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The budget that all connections of one identity share.
#[derive(Debug)]
pub(crate) struct IdentityBudget {
    meter: Meter,
    lanes: Lanes,
    observers: Seats,
}

impl IdentityBudget {
    fn new() -> Arc<IdentityBudget> {
        Arc::new(IdentityBudget {
            meter: Meter::new(IDENTITY_BYTES_MAX),
            lanes: Lanes::default(),
            observers: Seats::default(),
        })
    }

    pub(crate) fn has_room(&self) -> bool {
        self.meter.has_room()
    }

    /// Counts bytes until the charge is dropped.
    pub(crate) fn charge(self: &Arc<IdentityBudget>, bytes: usize) -> Charge {
        self.meter.add(bytes);
        Charge { connection: None, identity: self.clone(), bytes, is_request: true }
    }
}

/// The budgets of all identities.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    identities: Mutex<HashMap<Option<SmolStr>, Weak<IdentityBudget>>>,
    lanes: Lanes,
}

impl Budgets {
    /// Returns the budget of an identity; `None` for unauthenticated callers.
    pub(crate) fn identity(&self, identity: Option<SmolStr>) -> Arc<IdentityBudget> {
        let mut identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = identities.get(&identity).and_then(Weak::upgrade) {
            return budget;
        }
        if identities.len() >= IDENTITIES_KEPT {
            identities.retain(|_, budget| budget.strong_count() > 0);
        }
        let budget = IdentityBudget::new();
        identities.insert(identity, Arc::downgrade(&budget));
        budget
    }

    /// Returns the budget of a connection on behalf of an identity.
    pub(crate) fn of(&self, connection: &ConnectionBudget, identity: Option<SmolStr>) -> ByteBudget {
        ByteBudget {
            connection: connection.clone(),
            identity: self.identity(identity),
            lanes: self.lanes.clone(),
        }
    }
}

/// The budget of one connection, whatever its protocol.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionBudget {
    meter: Arc<Meter>,
    observers: Seats,
    health_watches: Seats,
    reflections: Seats,
    /// What has arrived and is not counted elsewhere.
    pub(crate) arrivals: Arrivals,
    /// When the client last read something, or when nothing was queued.
    progress: Arc<Mutex<Instant>>,
}

impl Default for ConnectionBudget {
    fn default() -> ConnectionBudget {
        ConnectionBudget {
            meter: Arc::new(Meter::new(CONNECTION_BYTES_MAX)),
            observers: Seats::default(),
            health_watches: Seats::default(),
            reflections: Seats::default(),
            arrivals: Arrivals::default(),
            progress: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl ConnectionBudget {
    pub(crate) fn with(arrivals: Arrivals) -> ConnectionBudget {
        ConnectionBudget { arrivals, ..ConnectionBudget::default() }
    }

    fn note_progress(&self) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Admits a stream that watches the health of the node, or refuses it with `limit`.
    pub(crate) fn admit_health_watch(&self) -> Result<Seat, Failure> {
        self.health_watches
            .take(HEALTH_WATCHES_PER_CONNECTION_MAX)
            .ok_or_else(|| over_budget("this connection watches the health as often as it may"))
    }

    /// Completes when answers are queued and the client has read nothing for too long.
    pub(crate) async fn stalled(&self) {
        self.note_progress();
        loop {
            // An idle connection needs no timer.
            while self.meter.is_idle() {
                self.meter.began.notified().await;
                self.note_progress();
            }
            tokio::time::sleep(STALLED_FOR / 6).await;
            if self.meter.is_idle() {
                self.note_progress();
            }
            let last = *self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= STALLED_FOR {
                return;
            }
        }
    }
}

/// A connection's budget on behalf of an identity. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ByteBudget {
    connection: ConnectionBudget,
    identity: Arc<IdentityBudget>,
    /// The lanes of all identities together.
    lanes: Lanes,
}

impl ByteBudget {
    /// Returns the bytes counted for the connection.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.connection.meter.used.load(Ordering::Relaxed)
    }

    /// Returns a budget that is shared with nothing else.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn standalone() -> ByteBudget {
        Budgets::default().of(&ConnectionBudget::default(), None)
    }

    /// Waits until the connection is below its budget.
    pub(crate) async fn wait_for_room(&self) {
        loop {
            let freed = self.connection.meter.freed.notified();
            if self.connection.meter.has_room() {
                return;
            }
            freed.await;
        }
    }

    /// Whether the connection is below its budget.
    pub(crate) fn has_connection_room(&self) -> bool {
        self.connection.meter.has_room()
    }

    /// Refuses a read while the connection or the identity is above its budget: the answer may be large.
    pub(crate) fn check_read(&self) -> Result<(), Failure> {
        match (self.connection.meter.has_room(), self.identity.meter.has_room()) {
            (true, true) => Ok(()),
            (false, _) => {
                Err(over_budget("unread answers fill the budget of this connection: read them first"))
            }
            (true, false) => {
                Err(over_budget("unread answers fill the budget of this identity: read them first"))
            }
        }
    }

    /// Counts bytes of an answer until the charge is dropped. Never refused: the request was already admitted.
    pub(crate) fn charge(&self, bytes: usize) -> Charge {
        self.connection.meter.add(bytes);
        self.identity.meter.add(bytes);
        let (connection, identity) = (Some(self.connection.clone()), self.identity.clone());
        Charge { connection, identity, bytes, is_request: false }
    }

    /// Returns a charge for a request, which [`ByteBudget::charge_request`] grows.
    pub(crate) fn begin_request(&self) -> Charge {
        let (connection, identity) = (Some(self.connection.clone()), self.identity.clone());
        Charge { connection, identity, bytes: 0, is_request: true }
    }

    /// Counts bytes for the identity only.
    pub(crate) fn charge_identity(&self, bytes: usize) -> Charge {
        self.identity.charge(bytes)
    }

    /// Returns the budget of the identity.
    pub(crate) fn identity(&self) -> &Arc<IdentityBudget> {
        &self.identity
    }

    /// Returns what has arrived on the connection.
    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.connection.arrivals
    }

    /// Admits a stream of reflection, or refuses it with `limit`.
    pub(crate) fn admit_reflection(&self) -> Result<ReflectionSeat, Failure> {
        let Some(seat) = self.connection.reflections.take(REFLECTIONS_PER_CONNECTION_MAX) else {
            return Err(over_budget("this connection has as many streams of reflection as it may"));
        };
        self.check_read()?;
        Ok(ReflectionSeat { _seat: seat, _charge: self.charge_identity(REFLECTION_BYTES) })
    }

    /// Admits an observer of an election, or refuses it with `limit`.
    pub(crate) fn admit_observer(&self) -> Result<ObserverSeat, Failure> {
        let Some(connection) = self.connection.observers.take(OBSERVERS_PER_CONNECTION_MAX) else {
            return Err(over_budget(
                "this connection observes as many elections as it may: end some observers",
            ));
        };
        let identity = self.identity.observers.take(OBSERVERS_PER_IDENTITY_MAX);
        let Some(identity) = identity.filter(|_| self.has_identity_room()) else {
            return Err(over_budget(
                "this identity observes as many elections as it may: end some observers",
            ));
        };
        let charge = self.charge_identity(OBSERVER_BYTES);
        Ok(ObserverSeat { _connection: connection, _identity: identity, _charge: charge })
    }

    /// Waits for the turn of a read whose cost grows with the table.
    pub(crate) fn read_turn(&self) -> impl Future<Output = TurnPermit> + Send + use<> {
        Lanes::read(&self.identity.lanes, &self.lanes)
    }

    /// Waits for the next turn of a stream that has used up its last one.
    pub(crate) fn bulk_turn(&self) -> impl Future<Output = TurnPermit> + Send + use<> {
        Lanes::bulk(&self.identity.lanes, &self.lanes)
    }

    /// Whether the identity is below its budget.
    pub(crate) fn has_identity_room(&self) -> bool {
        self.identity.meter.has_room()
    }

    /// Counts bytes of a request that is being received, or refuses them above a budget.
    pub(crate) fn charge_request(&self, charge: &mut Charge, bytes: usize) -> Result<(), Failure> {
        if self.connection.meter.used.load(Ordering::Relaxed) + bytes > self.connection.meter.max
            || !self.identity.meter.has_room()
        {
            return Err(over_budget("too many bytes of requests and answers are in flight"));
        }
        charge.grow(bytes);
        Ok(())
    }
}

fn over_budget(why: &'static str) -> Failure {
    Failure::Overload { why: why.into(), retry_after_ms: RETRY_AFTER_MS }
}

/// The seat of an observer, counted for its connection and its identity until this is dropped.
#[derive(Debug)]
pub(crate) struct ObserverSeat {
    _connection: Seat,
    _identity: Seat,
    _charge: Charge,
}

/// The seat of a stream of reflection, counted for its connection and its identity until this is dropped.
#[derive(Debug)]
pub(crate) struct ReflectionSeat {
    _seat: Seat,
    _charge: Charge,
}

/// Bytes counted in a budget until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    /// None if counted for the identity only.
    connection: Option<ConnectionBudget>,
    // Holds the whole budget, which is dropped with its last reference.
    identity: Arc<IdentityBudget>,
    bytes: usize,
    /// Whether the bytes are a request's. When they are freed, the client has not read anything.
    is_request: bool,
}

impl Charge {
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.identity.meter.add(bytes);
        if let Some(connection) = &self.connection {
            connection.meter.add(bytes);
        }
    }

    /// Frees bytes that the client has read.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            return;
        }
        self.bytes -= bytes;
        self.identity.meter.sub(bytes);
        if let Some(connection) = &self.connection {
            connection.meter.sub(bytes);
            if !self.is_request {
                connection.note_progress();
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let left = self.bytes;
        self.shrink(left);
    }
}

#[cfg(test)]
mod tests;
