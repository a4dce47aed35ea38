//! A lock to be acquired: its name and how it is wanted.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Locks;
use smol_str::SmolStr;

use crate::engines::{AcquireRequest, InScope, Wait};
use crate::error::Error;
use crate::fencing::{Fenced, Fencing};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::mode::Mode;
use crate::run::{self, Lease};
use crate::trace;

/// A lock by its name. It can be acquired again and again; each acquire is an owner of its own, so two tasks that share
/// a keeper exclude each other.
///
/// Unless told otherwise, it waits for as long as it takes: see [`wait`](Lock::wait) and [`no_wait`](Lock::no_wait).
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock<F: Fencing = Fenced> {
    keeper: Keeper<F>,
    /// Shared with the acquires that are under way: it is large, and changes hands often.
    ask: Arc<AcquireRequest>,
}

impl<F: Fencing> Lock<F> {
    pub(crate) fn new(keeper: Keeper<F>, name: SmolStr) -> Lock<F> {
        let ask = AcquireRequest::new(Locks::One(name), &keeper.shared.options);
        Lock { keeper, ask: Arc::new(ask) }
    }

    fn changed(&mut self) -> &mut AcquireRequest {
        Arc::make_mut(&mut self.ask)
    }

    pub(crate) fn in_scope(mut self, scope: InScope) -> Lock<F> {
        self.changed().ttl = scope.ttl;
        self.changed().scope = Some(scope);
        self
    }

    /// What its holder announces to all who look, such as an address: an [`Election`](crate::Election) is a lock with
    /// this. At most 4 KiB. Default: nothing.
    pub fn announce(mut self, value: impl Into<SmolStr>) -> Self {
        self.changed().value = Some(value.into());
        self
    }

    /// How long the lock outlives a holder that is gone. Locks with the same time to live share one session. Default:
    /// the keeper's (10 seconds).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.changed().ttl = ttl;
        self
    }

    /// Wait at most this long; then the answer is [`Error::Timeout`]. Zero is the same as [`no_wait`](Lock::no_wait).
    pub fn wait(mut self, limit: Duration) -> Self {
        self.changed().wait = if limit.is_zero() { Wait::No } else { Wait::For(limit) };
        self
    }

    /// Do not wait: if it cannot be had at once, the answer is [`Error::Contended`].
    pub fn no_wait(mut self) -> Self {
        self.changed().wait = Wait::No;
        self
    }

    /// Wait for as long as it takes, also while the cell cannot be reached. This is the default.
    pub fn wait_forever(mut self) -> Self {
        self.changed().wait = Wait::Forever;
        self
    }

    /// Alone, or together with others.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.changed().mode = mode;
        self
    }

    /// Together with others who ask for it in shared mode.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// How many permits of a counted lock to take. Default: 1.
    pub fn permits(mut self, permits: u32) -> Self {
        self.changed().permits = Some(permits);
        self
    }

    /// Makes it a counted lock with so many permits. All who use it must name the same number.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.changed().capacity = Some(capacity);
        self
    }

    /// How long the lock stays closed if its holder is lost without releasing it: for resources that cannot check a
    /// token. At most a minute. Default: none.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.changed().lock_delay = delay;
        self
    }

    /// An id of your own for the request: the same id in the same session is the same request, and gets the same
    /// answer. Use each for one acquire only. Default: the keeper numbers its requests, and repeats them by itself.
    pub fn request_id(mut self, id: impl Into<SmolStr>) -> Self {
        self.changed().request_id = Some(id.into());
        self
    }

    /// Go on working in jeopardy: after the deadline, when the lock may already have passed on, [`Guard::lost`] and
    /// [`run`](Lock::run) wait this much longer for a renewal before they give up, unless the loss is known earlier.
    ///
    /// This trades safety for not stopping at a short outage. Use it only where every write is fenced: from the
    /// deadline on, the gate alone decides. Without this call, the work is stopped at the deadline.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.changed().grace = grace;
        self.changed().works_in_jeopardy = true;
        self
    }

    /// Acquires the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Contended`] if it is busy and must not wait, [`Error::Timeout`] when the wait is over,
    /// [`Error::Unavailable`] if the engine could not be asked in time. With each of them nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves the queue, and gives back what was granted meanwhile. Nothing stays behind.
    /// The place in the queue is lost.
    pub async fn acquire(&self) -> Result<Guard<F>, Error> {
        self.ask.check()?;
        let grant = trace::acquire(&*self.keeper.shared.engine, Arc::clone(&self.ask)).await?;
        Ok(Guard::new(grant, self.keeper.shared.clone()))
    }

    /// Acquires the lock if it can be had at once; `None` if it is busy.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe, as [`acquire`](Lock::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard<F>>, Error> {
        self.ask.check()?;
        let ask = Arc::new(AcquireRequest { wait: Wait::No, ..AcquireRequest::clone(&self.ask) });
        match trace::acquire(&*self.keeper.shared.engine, ask).await {
            Ok(grant) => Ok(Some(Guard::new(grant, self.keeper.shared.clone()))),
            Err(Error::Contended { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires the lock, does the work, releases the lock.
    ///
    /// The work's future is dropped before the lease can pass on: at the deadline at the latest, or as soon as the loss
    /// is known. The answer is then [`Error::Lost`]. `Ok` means that the work ended while the lock was held. With
    /// [`grace`](Lock::grace) the work goes on in jeopardy until the grace is over or the loss is known.
    ///
    /// A future can only be stopped where it awaits: work that blocks its thread has to call [`Lease::check`] itself,
    /// and the resource has to check the token in any case.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Lock::acquire), and [`Error::Lost`]. A failed release is no error of the work: it is
    /// repeated in the background.
    ///
    /// # Cancel safety
    ///
    /// A dropped call drops the work and releases the lock in the background.
    pub async fn run<W, T>(&self, work: impl FnOnce(Lease<F>) -> W) -> Result<T, Error>
    where
        W: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        run::run(guard, work).await
    }
}
