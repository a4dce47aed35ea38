//! One line of work that takes several locks, one after the other, and must not end in a deadlock.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lockkeeper_core::Locks;
pub use lockkeeper_core::Policy;
use smol_str::SmolStr;

use crate::backoff;
use crate::engines::InScope;
use crate::error::{Error, Loss};
use crate::fencing::{Fenced, Fencing};
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::lock_all::LockAll;

/// A line of work: the locks that it takes belong together. Two scopes that wait for each other in a circle would wait for
/// ever; the [`Policy`] says what happens instead.
///
/// | policy | when another scope is in the way | the one that has to give way gets |
/// |---|---|---|
/// | [`Policy::Detect`] (default) | waits, unless that would close a circle | [`Error::Deadlock`], with the circle in its text |
/// | [`Policy::WaitDie`] | waits for younger scopes only | [`Error::Died`] |
/// | [`Policy::WoundWait`] | takes the lock from younger scopes, waits for older ones | [`Error::Wounded`], and its guards are lost at once |
///
/// A scope is as old as its first acquire, and keeps its age when it begins again, so that it gets through in the end.
/// [`run`](Scope::run) does that by itself.
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

    /// Its name, which people see beside its locks.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What happens when another scope is in the way. Scopes that meet should have the same one.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The time to live of all its locks, which share one session. Default: the keeper's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    fn in_scope(&self) -> InScope {
        InScope { name: self.name.clone(), policy: self.policy, ttl: self.ttl }
    }

    /// A lock for this line of work. Its time to live is the scope's.
    pub fn lock(&self, name: impl Into<SmolStr>) -> Lock<F> {
        Lock::new(self.keeper.clone(), name.into()).in_scope(self.in_scope())
    }

    /// Several locks at once for this line of work.
    pub fn lock_all<N: Into<SmolStr>>(&self, names: impl IntoIterator<Item = N>) -> LockAll<F> {
        let locks = Locks::many(names.into_iter().map(Into::into));
        LockAll::new(self.keeper.clone(), locks).in_scope(self.in_scope())
    }

    /// Does the work, and does it again from the start whenever it has to give way: after `Deadlock`, `Died` and `Wounded`,
    /// and after a `Timeout` of one of its waits. Between two tries it rests, longer each time, with a random part. The
    /// work has to pass these errors on, and must be fit to be begun again: what it wrote under a guard that was lost
    /// is the gate's business.
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
                Err(error) if gives_way(&error) => {
                    tracing::debug!(scope = %self.name, %error, "begins again");
                    tokio::time::sleep(backoff::pause(attempt)).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

fn gives_way(error: &Error) -> bool {
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
