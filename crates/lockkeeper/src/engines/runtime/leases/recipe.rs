//! The recipe of an engine with a lease for each grant: how its server takes, renews and releases a lease.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Token;
use tokio::sync::watch;

use crate::deadline::Deadline;
use crate::engines::AcquireRequest;
use crate::engines::runtime::{Failure, Server, random_hex};
use crate::error::Error;

/// The recipe of an engine. Each call ends within the request timeout, plus the wait that it was given. Calls that fail with
/// `Unreachable` are retried while there is time.
pub(crate) trait Recipe: Server {
    /// The data needed to renew and release.
    type Lease: Clone + Send + Sync + 'static;

    /// Whether the server has a queue in which [`take`](Recipe::take) waits.
    const WAITS_ON_SERVER: bool = false;

    /// Takes the locks for `owner`, or returns that they are busy. Idempotent for the same owner.
    fn take(
        &self,
        request: &AcquireRequest,
        owner: &OwnerId,
        wait: Duration,
    ) -> impl Future<Output = Result<Taken<Self::Lease>, Failure>> + Send;

    /// Renews the lease; false if it is no longer ours.
    fn renew(&self, lease: &Self::Lease, ttl: Duration)
    -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Releases the lease; false if it was no longer ours.
    fn release(&self, lease: &Self::Lease) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Rolls back a take whose caller is gone.
    fn roll_back(
        &self,
        request: &AcquireRequest,
        owner: &OwnerId,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Subscribes to releases, if the server publishes them.
    fn subscribe(&self, _request: &AcquireRequest) -> ReleaseEvents {
        ReleaseEvents::none()
    }
}

/// The answer to a take.
pub(crate) enum Taken<L> {
    Granted {
        lease: L,
        token: Option<Token>,
        deadline: Arc<Deadline>,
    },
    /// Another owner holds the lock, for at most this long if the server knows.
    Busy {
        free_in: Option<Duration>,
    },
}

/// 20 random bytes in hexadecimal: unique and unguessable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnerId(pub(crate) String);

impl OwnerId {
    pub(super) fn random() -> Result<OwnerId, Error> {
        random_hex::<20>().map(OwnerId)
    }
}

/// Notifications that a lock may be free. Without any, waiters poll.
pub(crate) struct ReleaseEvents(Option<watch::Receiver<()>>);

impl ReleaseEvents {
    pub(crate) fn none() -> ReleaseEvents {
        ReleaseEvents(None)
    }

    pub(crate) fn from(receiver: watch::Receiver<()>) -> ReleaseEvents {
        ReleaseEvents(Some(receiver))
    }

    pub(super) async fn next(&mut self) {
        if let Some(receiver) = &mut self.0
            && receiver.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}
