//! One byte budget for each connection and each identity. It covers what the node keeps for them: queued answers of a
//! stream, bodies of HTTP answers that were not sent yet, and requests that are not complete yet (S11).
//!
//! Above the budget of its connection, a request waits until the client has read. Above the budget of its identity, and on
//! streams above both, reads are refused with `limit`; their answers may be large. Everything else goes on: its answers are
//! small, and renewals and releases are among it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::turns::{Lanes, TurnPermit};

/// A request of this size is taken in above the budget of its identity as well: renewals and releases are small.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// What the node keeps for one connection: more than the largest message.
pub(crate) const CONNECTION_BYTES_MAX: usize = 6 << 20;
/// What the node keeps for all connections of one identity; callers that are not authenticated are one.
const IDENTITY_BYTES_MAX: usize = 128 << 20;
/// A connection that takes nothing of what waits for it is closed after this time.
pub(crate) const STALLED_FOR: Duration = Duration::from_secs(30);
/// When to come back.
const RETRY_AFTER_MS: u64 = 1_000;
/// Identities whose meters are remembered, before those that are not in use are forgotten.
const IDENTITIES_KEPT: usize = 1_024;

/// Counts bytes.
#[derive(Debug)]
struct Meter {
    used: AtomicUsize,
    max: usize,
    /// Bytes are no longer counted.
    freed: Notify,
    /// The first byte is counted.
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

/// What all connections of one identity share.
#[derive(Debug)]
struct IdentityBudget {
    meter: Meter,
    lanes: Lanes,
}

impl IdentityBudget {
    fn new() -> Arc<IdentityBudget> {
        Arc::new(IdentityBudget { meter: Meter::new(IDENTITY_BYTES_MAX), lanes: Lanes::default() })
    }
}

/// The budgets of all identities.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    identities: Mutex<HashMap<Option<SmolStr>, Weak<IdentityBudget>>>,
    lanes: Lanes,
}

impl Budgets {
    fn identity(&self, identity: Option<SmolStr>) -> Arc<IdentityBudget> {
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

    /// The budget of a connection on behalf of an identity.
    pub(crate) fn of(&self, connection: &ConnectionBudget, identity: Option<SmolStr>) -> ByteBudget {
        ByteBudget {
            connection: connection.clone(),
            identity: self.identity(identity),
            lanes: self.lanes.clone(),
        }
    }
}

/// The meter of one connection, whatever is spoken on it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionBudget {
    meter: Arc<Meter>,
    /// When the client last took something, or when there was nothing to take.
    progress: Arc<Mutex<Instant>>,
}

impl Default for ConnectionBudget {
    fn default() -> ConnectionBudget {
        ConnectionBudget {
            meter: Arc::new(Meter::new(CONNECTION_BYTES_MAX)),
            progress: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl ConnectionBudget {
    fn note_progress(&self) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Ends when answers wait and the client has taken nothing for too long.
    pub(crate) async fn stalled(&self) {
        self.note_progress();
        loop {
            // An idle connection costs no timer.
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
    /// Those of all identities.
    lanes: Lanes,
}

impl ByteBudget {
    /// The bytes that are counted for the connection.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.connection.meter.used.load(Ordering::Relaxed)
    }

    /// A budget of its own.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn alone() -> ByteBudget {
        Budgets::default().of(&ConnectionBudget::default(), None)
    }

    /// Waits until the client has read enough of what was sent before.
    pub(crate) async fn room(&self) {
        loop {
            let freed = self.connection.meter.freed.notified();
            if self.connection.meter.has_room() {
                return;
            }
            freed.await;
        }
    }

    /// Whether a read, whose answer may be large, may be carried out.
    pub(crate) fn check_read(&self) -> Result<(), Failure> {
        match (self.connection.meter.has_room(), self.identity.meter.has_room()) {
            (true, true) => Ok(()),
            (false, _) => Err(over_budget("answers wait on this connection: read them first")),
            (true, false) => {
                Err(over_budget("answers wait on connections of this identity: read them first"))
            }
        }
    }

    /// Counts bytes until the charge is dropped. Never refused: what they are for was admitted.
    pub(crate) fn charge(&self, bytes: usize) -> Charge {
        self.connection.meter.add(bytes);
        self.identity.meter.add(bytes);
        Charge { connection: Some(self.connection.clone()), identity: self.identity.clone(), bytes }
    }

    /// Counts bytes for the identity alone.
    pub(crate) fn charge_identity(&self, bytes: usize) -> Charge {
        self.identity.meter.add(bytes);
        Charge { connection: None, identity: self.identity.clone(), bytes }
    }

    /// Waits for the turn of a read whose cost grows with what is in the table.
    pub(crate) fn read_turn(&self) -> impl Future<Output = TurnPermit> + Send + use<> {
        Lanes::read(&self.identity.lanes, &self.lanes)
    }

    /// Waits for the next turn of a stream that has used up its last one.
    pub(crate) fn bulk_turn(&self) -> impl Future<Output = TurnPermit> + Send + use<> {
        Lanes::bulk(&self.identity.lanes, &self.lanes)
    }

    /// Whether all connections of the identity together are below its budget.
    pub(crate) fn has_identity_room(&self) -> bool {
        self.identity.meter.has_room()
    }

    /// The same for bytes that are coming in, if there is room for them.
    pub(crate) fn charge_request(&self, charge: &mut Charge, bytes: usize) -> Result<(), Failure> {
        if self.connection.meter.used.load(Ordering::Relaxed) + bytes > self.connection.meter.max
            || !self.identity.meter.has_room()
        {
            return Err(over_budget("too many bytes of requests and answers are under way"));
        }
        charge.grow(bytes);
        Ok(())
    }
}

fn over_budget(why: &'static str) -> Failure {
    Failure::Overload { why: why.into(), retry_after_ms: RETRY_AFTER_MS }
}

/// Bytes that are counted.
#[derive(Debug)]
pub(crate) struct Charge {
    /// None: counted for the identity alone.
    connection: Option<ConnectionBudget>,
    // Not the meter alone: the budget of an identity is forgotten when nobody has it.
    identity: Arc<IdentityBudget>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.identity.meter.add(bytes);
        if let Some(connection) = &self.connection {
            connection.meter.add(bytes);
        }
    }

    /// The client has taken so many.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.identity.meter.sub(bytes);
        if let Some(connection) = &self.connection {
            connection.meter.sub(bytes);
            connection.note_progress();
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
mod tests {
    use super::*;

    #[test]
    fn unread_bytes_of_one_connection_stop_its_reads_and_nobody_elses() {
        let budgets = Budgets::default();
        let (one, other) = (ConnectionBudget::default(), ConnectionBudget::default());
        let greedy = budgets.of(&one, Some("a".into()));
        let mut charge = greedy.charge(CONNECTION_BYTES_MAX);
        assert!(greedy.check_read().is_err());
        assert!(budgets.of(&other, Some("a".into())).check_read().is_ok());
        charge.shrink(1);
        assert!(greedy.check_read().is_ok());
    }

    #[test]
    fn unread_bytes_of_all_connections_stop_the_reads_of_an_identity_and_nobody_elses() {
        let budgets = Budgets::default();
        let fill = |_| budgets.of(&ConnectionBudget::default(), None).charge(1 << 20);
        let charges: Vec<Charge> = (0..IDENTITY_BYTES_MAX >> 20).map(fill).collect();
        let fresh = ConnectionBudget::default();
        assert!(budgets.of(&fresh, None).check_read().is_err());
        assert!(budgets.of(&fresh, Some("other".into())).check_read().is_ok());
        drop(charges);
        assert!(budgets.of(&fresh, None).check_read().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_noticed_and_one_that_reads_slowly_is_not() {
        let connection = ConnectionBudget::default();
        let idle = tokio::time::timeout(STALLED_FOR * 10, connection.stalled()).await;
        assert!(idle.is_err(), "nothing waits for it");
        let mut charge = Budgets::default().of(&connection, None).charge(100);
        let slow = async {
            for _ in 0..20 {
                tokio::time::sleep(STALLED_FOR / 2).await;
                charge.shrink(1);
            }
        };
        tokio::select! {
            () = slow => {}
            () = connection.stalled() => panic!("it reads"),
        }
        let stalled = tokio::time::timeout(STALLED_FOR * 2, connection.stalled()).await;
        assert!(stalled.is_ok(), "it has stopped reading");
    }
}
