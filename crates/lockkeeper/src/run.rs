//! Work under a lock, stopped before the lease can pass on.

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

/// A view of a guard: what the work may know about the lock it works under. It does not keep the lock.
pub struct Lease<F: Fencing = Fenced> {
    grant: Arc<Grant>,
    fencing: PhantomData<fn() -> F>,
}

impl<F: Fencing> Lease<F> {
    pub(crate) fn new(grant: Arc<Grant>) -> Lease<F> {
        Lease { grant, fencing: PhantomData }
    }

    /// See [`Guard::lock_name`].
    pub fn lock_name(&self) -> &str {
        self.grant.name()
    }

    /// See [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.grant.remaining()
    }

    /// See [`Guard::state`].
    pub fn state(&self) -> GuardState {
        self.grant.state().unwrap_or(GuardState::Lost)
    }

    /// See [`Guard::check`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.grant.check()
    }

    /// See [`Guard::lost`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only looks.
    pub async fn lost(&self) -> Loss {
        self.grant.stopped().await
    }
}

impl Lease<Fenced> {
    /// See [`Guard::token`].
    pub fn token(&self) -> Token {
        self.grant.token.unwrap_or_default()
    }

    /// See [`Guard::sequencer`].
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

/// Does the work while the guard lasts.
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
            // The clock is asked before every poll of the work: a machine that wakes from a long sleep, with its timers
            // late, does not do one more step.
            if let Some(why) = guard.grant().must_stop() {
                return Poll::Ready(Err(why));
            }
            if let Poll::Ready(why) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(why));
            }
            match work.as_mut().poll(context) {
                // `Ok` means that the work ended while the lock was held.
                Poll::Ready(output) => Poll::Ready(guard.grant().must_stop().map_or(Ok(output), Err)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
        // The work is dropped here, before the lock is given back.
    };
    match outcome {
        Ok(output) => {
            if let Err(error) = guard.release().await {
                tracing::debug!(%error, "the work is done, but its lock could not be released at once");
            }
            Ok(output)
        }
        Err(why) => Err(guard.grant().lost_error(why)),
    }
}
