//! Engines in which each grant has its own lease on the server: Redis, Redlock, PostgreSQL.
//!
//! ```text
//! acquire   takes the lock on the server, waits for its turn, rolls back when it is dropped
//! holdings  the held grants, by number
//! renewal   one task for each keeper: renews each lease at a third of its time to live
//! recipe    how the engine takes, renews and releases a lease
//! ```

mod acquire;
mod holdings;
mod recipe;
mod renewal;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::Notify;

use self::holdings::Holdings;
pub(crate) use self::recipe::{OwnerId, Recipe, ReleaseEvents, Taken};
use super::attempt::Attempt;
use super::engine::{Kind, ServerEngine};
use super::requests::BackgroundRelease;
use super::{Failure, Runtime};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::{Error, Loss};
use crate::grant::Grant;
use crate::options::Options;

/// An engine whose grants have their own leases.
pub(crate) type LeaseEngine<R> = ServerEngine<Leases<R>>;

/// The leases of a keeper.
pub(crate) struct Leases<R: Recipe> {
    runtime: Runtime,
    recipe: R,
    holdings: Holdings<R::Lease>,
    /// Notified when a renewal is due before the next check of the renewal task, and on close.
    rescheduled: Arc<Notify>,
    /// The next check of the renewal task, in nanoseconds on [`Moment`]'s clock.
    next_check: AtomicU64,
}

/// Starts the engine. The recipe is already connected to its server.
pub(crate) fn start<R: Recipe>(recipe: R, options: &Options) -> LeaseEngine<R> {
    let rescheduled = Arc::new(Notify::new());
    let leases = Arc::new(Leases {
        runtime: Runtime::new(options),
        recipe,
        holdings: Holdings::default(),
        rescheduled: Arc::clone(&rescheduled),
        next_check: AtomicU64::new(0),
    });
    tokio::spawn(renewal::run(Arc::downgrade(&leases), rescheduled));
    ServerEngine::new(leases)
}

impl<R: Recipe> Leases<R> {
    /// Records from the result of a call whether the server is reachable.
    fn observed<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        match &result {
            Err(Failure::Unreachable(why)) => self.runtime.note_disconnected(why),
            _ => self.runtime.note_connected(|| self.recipe.address()),
        }
        result
    }

    /// Releases a lease in the background, with retries until it has expired.
    fn spawn_release(self: &Arc<Self>, lease: R::Lease, ttl: Duration) {
        let leases = Arc::clone(self);
        self.runtime.background.spawn(async move {
            persist(ttl, || leases.recipe.release(&lease)).await;
        });
    }

    async fn release_lease(self: &Arc<Self>, grant: &Grant) -> Result<(), Error> {
        let not_held = || match grant.state() {
            Err(Loss::SessionExpired) => Error::SessionLost,
            Err(Loss::Closed) => Error::Closed,
            _ => Error::NotHeld { lock: grant.name().clone() },
        };
        let Some(lease) = self.holdings.begin_release(grant.number) else { return Err(not_held()) };
        let limit = self.runtime.options.request_timeout;
        let released = tokio::time::timeout(limit, retry(limit, || self.recipe.release(&lease))).await;
        let why = match released.map(|released| self.observed(released)) {
            Ok(Ok(true)) => {
                self.remove(grant.number);
                return Ok(());
            }
            Ok(Ok(false)) => {
                self.remove(grant.number);
                let _ = grant.lose(Loss::TakenAway);
                return Err(not_held());
            }
            Ok(Err(failure)) => failure.into_error(&self.recipe.address()).to_string(),
            Err(_) => format!("no answer within {limit:?}"),
        };
        Arc::clone(self).release_in_background(grant.number);
        Err(Error::Unknown(smol_str::format_smolstr!(
            "\"{}\" may still be held ({why}): the release is retried in the background, and the lock expires with its \
             time to live",
            grant.name()
        )))
    }

    /// Removes a grant from the holdings, and its ID from the known requests.
    fn remove(&self, number: u64) -> Option<holdings::Held<R::Lease>> {
        let held = self.holdings.remove(number)?;
        if let Some(key) = &held.key {
            self.runtime.requests.forget(key);
        }
        Some(held)
    }
}

impl<R: Recipe> BackgroundRelease for Leases<R> {
    fn release_in_background(self: Arc<Self>, number: u64) {
        if let Some(held) = self.remove(number) {
            self.spawn_release(held.lease, held.ttl);
        }
    }
}

impl<R: Recipe> Kind for Leases<R> {
    type Server = R;

    const DROPPABLE: bool = true;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn server(&self) -> &R {
        &self.recipe
    }

    fn acquire(
        self: &Arc<Self>,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<Arc<Grant>, Error>> + Send {
        self.acquire_lease(attempt)
    }

    fn release(self: &Arc<Self>, grant: &Grant) -> impl Future<Output = Result<(), Error>> + Send {
        self.release_lease(grant)
    }

    fn session_ids(&self) -> Vec<String> {
        Vec::new()
    }

    async fn shut_down(self: Arc<Self>) {
        let held = self.holdings.take_all();
        for held in &held {
            let _ = held.grant.lose(Loss::Closed);
        }
        for held in held {
            self.spawn_release(held.lease, held.ttl);
        }
        self.rescheduled.notify_one();
        self.runtime.background.finish().await;
        self.recipe.close().await;
        self.runtime.end_events();
    }
}

/// Retries a call until it is answered or the limit is reached.
async fn retry<T, F>(limit: Duration, mut call: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let until = Moment::now().plus(limit);
    let mut backoff = Backoff::default();
    loop {
        match call().await {
            Err(Failure::Unreachable(why)) => {
                let pause = backoff.next_pause();
                if Moment::now().plus(pause) >= until {
                    return Err(Failure::Unreachable(why));
                }
                tokio::time::sleep(pause).await;
            }
            result => return result,
        }
    }
}

/// Retries a call without a caller: a failure is only logged.
async fn persist<T, F>(limit: Duration, call: impl FnMut() -> F)
where
    F: Future<Output = Result<T, Failure>>,
{
    if let Err(failure) = retry(limit, call).await {
        tracing::debug!(?failure, "failed to release a lock: it expires with its time to live");
    }
}
