//! What an engine with a lease for each grant must know: how its server takes, renews and releases a lease.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Token;
use tokio::sync::watch;

use crate::deadline::Deadline;
use crate::engines::AcquireRequest;
use crate::engines::runtime::{Failure, Server, random_hex};
use crate::error::Error;

/// The recipe of an engine. Each call ends within the request timeout, but for the wait that it was given.
/// `Unreachable` calls are repeated while there is time.
pub(crate) trait Recipe: Server {
    /// What the recipe needs to know to renew and release.
    type Lease: Clone + Send + Sync + 'static;

    /// The server has a queue: [`take`](Recipe::take) waits there.
    const WAITS_ON_SERVER: bool = false;

    /// Takes the locks in the name of `owner`, or says that they are busy. Taking twice as the same owner is taking
    /// once.
    fn take(
        &self,
        request: &AcquireRequest,
        owner: &OwnerId,
        wait: Duration,
    ) -> impl Future<Output = Result<Taken<Self::Lease>, Failure>> + Send;

    /// Renews the lease; false if it is not ours any more.
    fn renew(&self, lease: &Self::Lease, ttl: Duration)
    -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Releases the lease; false if it was not ours any more.
    fn release(&self, lease: &Self::Lease) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Rolls back a take whose answer nobody waits for.
    fn roll_back(
        &self,
        request: &AcquireRequest,
        owner: &OwnerId,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Subscribes to releases from now on, if the server publishes them.
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
    /// Somebody else holds it, for this long at most if the server knows.
    Busy {
        free_in: Option<Duration>,
    },
}

/// 20 random bytes: nobody else has the same, and nobody can guess it.
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
