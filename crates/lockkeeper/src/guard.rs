//! The guard: the client's handle on a grant.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Token;
use smol_str::SmolStr;

use crate::error::{Error, Loss};
use crate::fencing::{Fenced, Fencing};
use crate::grant::Grant;
use crate::keeper::Shared;
use crate::mode::Mode;
use crate::run::Lease;

/// State of a guard; see the [crate's front page](crate#the-states-of-a-guard).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GuardState {
    /// No other client can hold the lock.
    Held,
    /// The deadline has passed without a renewal: another client may acquire the lock at any moment. Or, with ZooKeeper,
    /// the session is suspended: the connection is lost before the deadline.
    Jeopardy,
    /// The lock is lost for good.
    Lost,
}

/// A held lock. Dropping it releases the lock in the background and never blocks.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard<F: Fencing = Fenced> {
    grant: Arc<Grant>,
    shared: Arc<Shared>,
    /// Whether dropping the guard has to release the lock.
    armed: bool,
    fencing: PhantomData<fn() -> F>,
}

impl<F: Fencing> Guard<F> {
    pub(crate) fn new(grant: Arc<Grant>, shared: Arc<Shared>) -> Guard<F> {
        Guard { grant, shared, armed: true, fencing: PhantomData }
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns the name of the lock; the first name if the guard holds several.
    pub fn lock_name(&self) -> &str {
        self.grant.name()
    }

    /// Returns the names of all locks that the guard holds.
    pub fn lock_names(&self) -> impl Iterator<Item = &str> {
        self.grant.locks.as_slice().iter().map(SmolStr::as_str)
    }

    /// Returns whether the lock is held exclusively or shared.
    pub fn mode(&self) -> Mode {
        self.grant.mode
    }

    /// Returns how long the lock is certainly held without another renewal; zero in jeopardy and when lost.
    pub fn remaining(&self) -> Duration {
        let remaining = self.grant.remaining();
        if remaining.is_zero() {
            self.release_if_lost();
        }
        remaining
    }

    /// Returns the current state. Decided by the local clock, without a request to the engine.
    pub fn state(&self) -> GuardState {
        match self.grant.state() {
            Ok(state) => state,
            Err(_) => {
                self.release_if_lost();
                GuardState::Lost
            }
        }
    }

    /// Checks that the lock is certainly held. Call it before each step that matters.
    ///
    /// It fails from the deadline on, even in a grace period.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.grant.check().inspect_err(|_| self.release_if_lost())
    }

    /// Waits until the work has to stop, and returns the reason: at the deadline, or as soon as the loss is known.
    ///
    /// If the lock was configured with [`Lock::grace`](crate::Lock::grace), it resolves at the end of the grace instead of
    /// at the deadline.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only observes.
    pub async fn lost(&self) -> Loss {
        let why = self.grant.until_must_stop().await;
        self.release_if_lost();
        why
    }

    /// Subscribes to the changes of state.
    pub fn changes(&self) -> GuardChanges {
        GuardChanges { grant: Arc::clone(&self.grant), last: None }
    }

    /// Returns a view of this guard that other code can keep: it neither releases the lock nor keeps it held.
    pub fn lease(&self) -> Lease<F> {
        Lease::new(Arc::clone(&self.grant))
    }

    /// Releases the lock and waits for the confirmation.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] or [`Error::SessionLost`] if the lock was lost before; other holders are not affected.
    /// [`Error::Unknown`] if there was no answer in time; the release is retried in the background.
    ///
    /// # Cancel safety
    ///
    /// A dropped call releases the lock in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let result = self.shared.engine.release(&self.grant).await;
        self.armed = false;
        result
    }

    /// Releases the lock of a lost guard: a guard lost by the clock alone may still hold it in the engine.
    fn release_if_lost(&self) {
        if self.grant.state().is_err() {
            self.shared.engine.release_in_background(&self.grant);
        }
    }
}

impl Guard<Fenced> {
    /// Returns the fencing token, which is greater than that of every earlier grant. Pass it to the resource with every
    /// write.
    pub fn token(&self) -> Token {
        // Invariant: a fenced keeper has an engine that issues a token with each grant.
        self.grant.token.unwrap_or_default()
    }

    /// Returns lock, mode and token as one string that any service can check; empty for several locks.
    pub fn sequencer(&self) -> &str {
        self.grant.sequencer()
    }
}

impl<F: Fencing> Drop for Guard<F> {
    fn drop(&mut self) {
        if self.armed {
            self.shared.engine.release_in_background(&self.grant);
        }
    }
}

impl<F: Fencing> fmt::Debug for Guard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("locks", &self.grant.locks.as_slice())
            .field("token", &self.grant.token)
            .field("state", &self.grant.state().unwrap_or(GuardState::Lost))
            .finish_non_exhaustive()
    }
}

/// Stream of the states of a guard, from [`Guard::changes`].
#[derive(Debug)]
pub struct GuardChanges {
    grant: Arc<Grant>,
    last: Option<GuardState>,
}

impl GuardChanges {
    /// Returns the current state on the first call, then waits for each change. `None` after `Lost`.
    ///
    /// Short-lived states may be skipped, but never `Lost`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the next call returns a change that this one did not.
    pub async fn next(&mut self) -> Option<GuardState> {
        let state = match self.last {
            Some(GuardState::Lost) => return None,
            Some(last) => self.grant.changed_from(last).await,
            None => self.grant.state().unwrap_or(GuardState::Lost),
        };
        self.last = Some(state);
        Some(state)
    }
}
