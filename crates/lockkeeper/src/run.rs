//! Work under a lock, stopped before another client can acquire the lock.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::Token;

use crate::error::{Error, Loss};
use crate::fencing::{Fenced, Fencing};
use crate::grant::Grant;
use crate::guard::{Guard, GuardState};

/// View of a guard for the work that runs under its lock. It does not keep the lock held.
pub struct Lease<F: Fencing = Fenced> {
    grant: Arc<Grant>,
    fencing: PhantomData<fn() -> F>,
}

impl<F: Fencing> Lease<F> {
    pub(crate) fn new(grant: Arc<Grant>) -> Lease<F> {
        Lease { grant, fencing: PhantomData }
    }

    /// Returns the name of the lock; see [`Guard::lock_name`].
    pub fn lock_name(&self) -> &str {
        self.grant.name()
    }

    /// Returns how long the lock is certainly held; see [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.grant.remaining()
    }

    /// Returns the current state; see [`Guard::state`].
    pub fn state(&self) -> GuardState {
        self.grant.state().unwrap_or(GuardState::Lost)
    }

    /// Checks that the lock is certainly held; see [`Guard::check`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.grant.check()
    }

    /// Waits until the work has to stop; see [`Guard::lost`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only observes.
    pub async fn lost(&self) -> Loss {
        self.grant.until_must_stop().await
    }
}

impl Lease<Fenced> {
    /// Returns the fencing token; see [`Guard::token`].
    pub fn token(&self) -> Token {
        self.grant.token.unwrap_or_default()
    }

    /// Returns the sequencer; see [`Guard::sequencer`].
    pub fn sequencer(&self) -> &str {
        self.grant.sequencer()
    }
}

impl<F: Fencing> Clone for Lease<F> {
    fn clone(&self) -> Self {
        Lease::new(Arc::clone(&self.grant))
    }
}

impl<F: Fencing> fmt::Debug for Lease<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("locks", &self.grant.locks.as_slice()).finish_non_exhaustive()
    }
}

/// Runs the work while the guard lasts.
pub(crate) async fn run<F: Fencing, W, T>(
    guard: Guard<F>,
    work: impl FnOnce(Lease<F>) -> W,
) -> Result<T, Error>
where
    W: Future<Output = T>,
{
    let outcome = {
        let mut lost = pin!(guard.lost());
        let mut work = pin!(work(guard.lease()));
        poll_fn(|context| {
            // Checked before every poll: on a machine that resumes from suspend, with its timers late, the work must not
            // take one more step.
            if let Some(why) = guard.grant().must_stop() {
                return Poll::Ready(Err(why));
            }
            if let Poll::Ready(why) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(why));
            }
            match work.as_mut().poll(context) {
                // `Ok` means that the work finished while the lock was held.
                Poll::Ready(output) => Poll::Ready(guard.grant().must_stop().map_or(Ok(output), Err)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
        // The work is dropped here, before the lock is released.
    };
    match outcome {
        Ok(output) => {
            if let Err(error) = guard.release().await {
                tracing::debug!(%error, "failed to release a lock after its work finished");
            }
            Ok(output)
        }
        Err(why) => Err(guard.grant().lost_error(why)),
    }
}
