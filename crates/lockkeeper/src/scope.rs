//! A scope: one line of work that acquires several locks, one after the other, without deadlock.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lockkeeper_core::Locks;
pub use lockkeeper_core::Policy;
use smol_str::SmolStr;

use crate::backoff;
use crate::engines::ScopeOptions;
use crate::error::{Error, Loss};
use crate::fencing::{Fenced, Fencing};
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::lock_all::LockAll;

/// One line of work whose locks belong together: the unit of deadlock prevention and detection.
///
/// Scopes that wait for each other in a cycle would wait forever. The [`Policy`] decides what happens instead:
///
/// | policy | when another scope holds the lock | error of the scope that gives way |
/// |---|---|---|
/// | [`Policy::Detect`] (default) | waits, unless that would close a cycle | [`Error::Deadlock`], which names the cycle |
/// | [`Policy::WaitDie`] | waits for younger scopes only | [`Error::Died`] |
/// | [`Policy::WoundWait`] | takes the lock from younger scopes, waits for older ones | [`Error::Wounded`], and its guards are lost at once |
///
/// A scope's age counts from its first acquire and is kept over retries, so every scope succeeds eventually.
/// [`run`](Scope::run) retries automatically.
///
/// ```no_run
/// # use lockkeeper::prelude::*;
/// # use lockkeeper::Policy;
/// # async fn example(keeper: Keeper) -> Result<(), lockkeeper::Error> {
/// keeper
///     .scope()
///     .policy(Policy::WoundWait)
///     .run(|scope| async move {
///         let from = scope.lock("account/7").acquire().await?;
///         let to = scope.lock("account/9").acquire().await?;
///         // move the money, fenced with from.token() and to.token()
///         to.release().await?;
///         from.release().await
///     })
///     .await?;
/// # Ok(()) }
/// ```
pub struct Scope<F: Fencing = Fenced> {
    keeper: Keeper<F>,
    name: SmolStr,
    policy: Policy,
    ttl: Duration,
}

impl<F: Fencing> Scope<F> {
    pub(crate) fn new(keeper: Keeper<F>, name: SmolStr) -> Scope<F> {
        let ttl = keeper.shared.options.ttl;
        Scope { keeper, name, policy: Policy::Detect, ttl }
    }

    /// Returns the name of the scope, which is shown with its locks.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets what happens when another scope holds the lock. Scopes that share locks should use the same policy.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the time to live of all locks of the scope, which share one session. Default: the keeper's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    fn in_scope(&self) -> ScopeOptions {
        ScopeOptions { name: self.name.clone(), policy: self.policy, ttl: self.ttl }
    }

    /// Creates a handle to a lock in this scope. Its time to live is the scope's.
    pub fn lock(&self, name: impl Into<SmolStr>) -> Lock<F> {
        Lock::new(self.keeper.clone(), name.into()).in_scope(self.in_scope())
    }

    /// Creates a handle to several locks in this scope that are acquired together.
    pub fn lock_all<N: Into<SmolStr>>(&self, names: impl IntoIterator<Item = N>) -> LockAll<F> {
        let locks = Locks::many(names.into_iter().map(Into::into));
        LockAll::new(self.keeper.clone(), locks).in_scope(self.in_scope())
    }

    /// Runs the work and retries it from the start whenever it has to give way: after `Deadlock`, `Died`, `Wounded`, or a
    /// `Timeout` of one of its waits.
    ///
    /// Retries use exponential backoff with jitter. The work has to return these errors and must tolerate a restart; the
    /// gate decides about writes that it made under a lost guard.
    ///
    /// # Errors
    ///
    /// Every other error of the work.
    ///
    /// # Cancel safety
    ///
    /// A dropped call drops the work; its guards are released in the background.
    pub async fn run<W, T>(&self, mut work: impl FnMut(Scope<F>) -> W) -> Result<T, Error>
    where
        W: Future<Output = Result<T, Error>>,
    {
        let mut attempt = 0;
        loop {
            match work(self.clone()).await {
                Err(error) if must_retry(&error) => {
                    tracing::debug!(scope = %self.name, %error, "retrying the scope");
                    tokio::time::sleep(backoff::pause(attempt)).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

fn must_retry(error: &Error) -> bool {
    matches!(
        error,
        Error::Deadlock(_)
            | Error::Died(_)
            | Error::Wounded(_)
            | Error::Timeout { .. }
            | Error::Lost { why: Loss::Wounded, .. }
    )
}

impl<F: Fencing> Clone for Scope<F> {
    fn clone(&self) -> Self {
        Scope { keeper: self.keeper.clone(), name: self.name.clone(), policy: self.policy, ttl: self.ttl }
    }
}

impl<F: Fencing> fmt::Debug for Scope<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("name", &self.name)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
