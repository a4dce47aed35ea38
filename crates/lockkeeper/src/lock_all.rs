//! Several locks, acquired together.

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
use crate::run::{self, Lease};

/// Handle to several locks that are acquired all or nothing, with one guard and one token.
#[derive(Debug, Clone)]
#[must_use = "locks do nothing until they are acquired"]
pub struct LockAll<F: Fencing = Fenced> {
    keeper: Keeper<F>,
    request: Arc<AcquireRequest>,
}

impl<F: Fencing> LockAll<F> {
    pub(crate) fn new(keeper: Keeper<F>, locks: Locks) -> LockAll<F> {
        let request = AcquireRequest::new(locks, &keeper.shared.options);
        LockAll { keeper, request: Arc::new(request) }
    }

    fn request_mut(&mut self) -> &mut AcquireRequest {
        Arc::make_mut(&mut self.request)
    }

    pub(crate) fn in_scope(mut self, scope: ScopeOptions) -> LockAll<F> {
        self.request_mut().set_scope(scope);
        self
    }

    /// Sets the time to live; see [`Lock::ttl`](crate::Lock::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request_mut().ttl = ttl;
        self
    }

    /// Limits the wait; see [`Lock::wait`](crate::Lock::wait).
    pub fn wait(mut self, limit: Duration) -> Self {
        self.request_mut().wait = Wait::at_most(limit);
        self
    }

    /// Does not wait; see [`Lock::no_wait`](crate::Lock::no_wait).
    pub fn no_wait(mut self) -> Self {
        self.request_mut().wait = Wait::No;
        self
    }

    /// Waits without a limit; see [`Lock::wait_forever`](crate::Lock::wait_forever).
    pub fn wait_forever(mut self) -> Self {
        self.request_mut().wait = Wait::Forever;
        self
    }

    /// Sets the lock-delay; see [`Lock::lock_delay`](crate::Lock::lock_delay).
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.request_mut().lock_delay = delay;
        self
    }

    /// Sets an ID for the request; see [`Lock::request_id`](crate::Lock::request_id).
    pub fn request_id(mut self, id: impl Into<SmolStr>) -> Self {
        self.request_mut().request_id = Some(id.into());
        self
    }

    /// Keeps working in jeopardy for this long; see [`Lock::grace`](crate::Lock::grace).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.request_mut().set_grace(grace);
        self
    }

    /// Acquires all the locks.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire); [`Error::Invalid`] if no lock is named.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves all queues and releases a grant that arrives meanwhile.
    pub async fn acquire(&self) -> Result<Guard<F>, Error> {
        if self.request.locks.as_slice().is_empty() {
            return Err(Error::invalid("lock_all got no names: name at least one lock"));
        }
        self.keeper.acquire(Arc::clone(&self.request)).await
    }

    /// Acquires all the locks, runs the work, and releases them; see [`Lock::run`](crate::Lock::run).
    ///
    /// # Cancel safety
    ///
    /// A dropped call drops the work and releases the locks in the background.
    pub async fn run<W, T>(&self, work: impl FnOnce(Lease<F>) -> W) -> Result<T, Error>
    where
        W: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        run::run(guard, work).await
    }
}
