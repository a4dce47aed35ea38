//! Several locks at once.

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
use crate::run::{self, Lease};
use crate::trace;

/// Several locks that are acquired all or nothing, with one guard and one token.
#[derive(Debug, Clone)]
#[must_use = "locks do nothing until they are acquired"]
pub struct LockAll<F: Fencing = Fenced> {
    keeper: Keeper<F>,
    ask: Arc<AcquireRequest>,
}

impl<F: Fencing> LockAll<F> {
    pub(crate) fn new(keeper: Keeper<F>, locks: Locks) -> LockAll<F> {
        let ask = AcquireRequest::new(locks, &keeper.shared.options);
        LockAll { keeper, ask: Arc::new(ask) }
    }

    fn changed(&mut self) -> &mut AcquireRequest {
        Arc::make_mut(&mut self.ask)
    }

    pub(crate) fn in_scope(mut self, scope: InScope) -> LockAll<F> {
        self.changed().ttl = scope.ttl;
        self.changed().scope = Some(scope);
        self
    }

    /// See [`Lock::ttl`](crate::Lock::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.changed().ttl = ttl;
        self
    }

    /// See [`Lock::wait`](crate::Lock::wait).
    pub fn wait(mut self, limit: Duration) -> Self {
        self.changed().wait = if limit.is_zero() { Wait::No } else { Wait::For(limit) };
        self
    }

    /// See [`Lock::no_wait`](crate::Lock::no_wait).
    pub fn no_wait(mut self) -> Self {
        self.changed().wait = Wait::No;
        self
    }

    /// See [`Lock::wait_forever`](crate::Lock::wait_forever).
    pub fn wait_forever(mut self) -> Self {
        self.changed().wait = Wait::Forever;
        self
    }

    /// See [`Lock::lock_delay`](crate::Lock::lock_delay).
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.changed().lock_delay = delay;
        self
    }

    /// See [`Lock::request_id`](crate::Lock::request_id).
    pub fn request_id(mut self, id: impl Into<SmolStr>) -> Self {
        self.changed().request_id = Some(id.into());
        self
    }

    /// See [`Lock::grace`](crate::Lock::grace).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.changed().grace = grace;
        self.changed().works_in_jeopardy = true;
        self
    }

    /// Acquires all of them.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire); [`Error::Invalid`] if no lock is named.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves all queues, and gives back what was granted meanwhile.
    pub async fn acquire(&self) -> Result<Guard<F>, Error> {
        if self.ask.locks.as_slice().is_empty() {
            return Err(Error::invalid("lock_all was given no name: name at least one lock"));
        }
        self.ask.check()?;
        let grant = trace::acquire(&*self.keeper.shared.engine, Arc::clone(&self.ask)).await?;
        Ok(Guard::new(grant, self.keeper.shared.clone()))
    }

    /// Acquires all of them, does the work, releases them; see [`Lock::run`](crate::Lock::run).
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
