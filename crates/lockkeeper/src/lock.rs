//! The handle to a lock: its name and the settings of an acquire.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Locks;
use smol_str::SmolStr;

use crate::engines::{AcquireRequest, ScopeOptions, Wait};
use crate::error::Error;
use crate::fencing::{Fenced, Fencing};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::mode::Mode;
use crate::run::{self, Lease};

/// Handle to a named lock, with the settings for acquiring it.
///
/// It can be acquired any number of times. Each acquire is its own owner, so two tasks that share a keeper exclude each
/// other. By default an acquire waits without a limit: see [`wait`](Lock::wait) and [`no_wait`](Lock::no_wait).
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock<F: Fencing = Fenced> {
    keeper: Keeper<F>,
    /// Shared with the acquires in flight: it is large and often passed on.
    request: Arc<AcquireRequest>,
}

impl<F: Fencing> Lock<F> {
    pub(crate) fn new(keeper: Keeper<F>, name: SmolStr) -> Lock<F> {
        let request = AcquireRequest::new(Locks::One(name), &keeper.shared.options);
        Lock { keeper, request: Arc::new(request) }
    }

    fn request_mut(&mut self) -> &mut AcquireRequest {
        Arc::make_mut(&mut self.request)
    }

    pub(crate) fn in_scope(mut self, scope: ScopeOptions) -> Lock<F> {
        self.request_mut().set_scope(scope);
        self
    }

    /// Sets a value that the holder announces to observers, such as an address. At most 4 KiB. Default: none.
    ///
    /// An [`Election`](crate::Election) is a lock with such a value.
    pub fn announce(mut self, value: impl Into<SmolStr>) -> Self {
        self.request_mut().value = Some(value.into());
        self
    }

    /// Sets the time to live: how long the lock outlives a holder that is gone. Default: the keeper's (10 seconds).
    ///
    /// Locks with the same time to live share one session.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request_mut().ttl = ttl;
        self
    }

    /// Waits at most this long, then fails with [`Error::Timeout`]. Zero is the same as [`no_wait`](Lock::no_wait).
    pub fn wait(mut self, limit: Duration) -> Self {
        self.request_mut().wait = Wait::at_most(limit);
        self
    }

    /// Does not wait: fails with [`Error::Contended`] if the lock is not free.
    pub fn no_wait(mut self) -> Self {
        self.request_mut().wait = Wait::No;
        self
    }

    /// Waits without a limit, even while the cell is unreachable. This is the default.
    pub fn wait_forever(mut self) -> Self {
        self.request_mut().wait = Wait::Forever;
        self
    }

    /// Sets whether to hold the lock exclusively or shared. Default: exclusively.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.request_mut().mode = mode;
        self
    }

    /// Acquires the lock in shared mode, together with other shared holders.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Sets how many permits of a counted lock to acquire. Default: 1.
    pub fn permits(mut self, permits: u32) -> Self {
        self.request_mut().permits = Some(permits);
        self
    }

    /// Makes it a counted lock (semaphore) with this many permits. All users must name the same number.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.request_mut().capacity = Some(capacity);
        self
    }

    /// Sets the lock-delay: how long the lock stays closed if its holder is lost without releasing it. Default: none.
    ///
    /// Use it for resources that cannot check a token. At most one minute.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.request_mut().lock_delay = delay;
        self
    }

    /// Sets an ID for the request: the same ID in the same session is the same request and gets the same answer.
    ///
    /// Use each ID for one acquire only. By default the keeper numbers its requests and retries them itself.
    pub fn request_id(mut self, id: impl Into<SmolStr>) -> Self {
        self.request_mut().request_id = Some(id.into());
        self
    }

    /// Keeps working in jeopardy for this long: after the deadline, [`Guard::lost`] and [`run`](Lock::run) wait this much
    /// longer for a renewal before they give up, unless the loss is known earlier.
    ///
    /// This trades safety for riding out a short outage: after the deadline another client may hold the lock. Use it only
    /// where every write is fenced, because only the gate decides then. Without this call, the work stops at the deadline.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.request_mut().set_grace(grace);
        self
    }

    /// Acquires the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Contended`] if the lock is busy and the call must not wait, [`Error::Timeout`] if the wait ended first,
    /// [`Error::Unavailable`] if the engine did not answer in time. In each case nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves the queue and releases a grant that arrives meanwhile. The place in the queue is
    /// lost.
    pub async fn acquire(&self) -> Result<Guard<F>, Error> {
        self.keeper.acquire(Arc::clone(&self.request)).await
    }

    /// Acquires the lock if it is free; returns `None` if it is busy.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe, as [`acquire`](Lock::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard<F>>, Error> {
        let request = AcquireRequest { wait: Wait::No, ..AcquireRequest::clone(&self.request) };
        match self.keeper.acquire(Arc::new(request)).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Contended { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires the lock, runs the work, and releases the lock.
    ///
    /// The work's future is dropped before another client can acquire the lock: at the deadline at the latest, or as soon
    /// as the loss is known. The call then returns [`Error::Lost`]. `Ok` means that the work finished while the lock was
    /// held. With [`grace`](Lock::grace) the work continues in jeopardy until the grace ends or the loss is known.
    ///
    /// A future stops only where it awaits: work that blocks its thread has to call [`Lease::check`] itself, and the
    /// resource has to check the token in any case.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Lock::acquire), and [`Error::Lost`]. A failed release is not an error of the work: it is
    /// retried in the background.
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
