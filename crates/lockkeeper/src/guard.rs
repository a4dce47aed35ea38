//! The handle on a grant.

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

/// Where a guard stands; see the [crate's front page](crate#the-states-of-a-guard).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GuardState {
    /// Nobody else can hold the lock.
    Held,
    /// The deadline has passed without a renewal: the lock may pass on at any moment. Or, with ZooKeeper, the session is
    /// suspended: the connection is lost, and the deadline is still to come.
    Jeopardy,
    /// The lock is not ours any more, for good.
    Lost,
}

/// A lock that is held. Dropping it releases the lock in the background and never blocks.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard<F: Fencing = Fenced> {
    grant: Arc<Grant>,
    shared: Arc<Shared>,
    /// Dropping it has to give the lock back.
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

    /// The lock's name; the first one of several.
    pub fn lock_name(&self) -> &str {
        self.grant.name()
    }

    /// The names of all locks that it holds.
    pub fn lock_names(&self) -> impl Iterator<Item = &str> {
        self.grant.locks.as_slice().iter().map(SmolStr::as_str)
    }

    /// Alone or shared.
    pub fn mode(&self) -> Mode {
        self.grant.mode
    }

    /// How long it is surely held from now on without another renewal; zero in jeopardy and when lost.
    pub fn remaining(&self) -> Duration {
        let remaining = self.grant.remaining();
        if remaining.is_zero() {
            self.settle();
        }
        remaining
    }

    /// Where it stands, by the clock: no message is needed, and none is awaited.
    pub fn state(&self) -> GuardState {
        match self.grant.state() {
            Ok(state) => state,
            Err(_) => {
                self.settle();
                GuardState::Lost
            }
        }
    }

    /// Whether it is surely held, to be asked before each step that matters. It fails from the deadline on, also in a
    /// grace period.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.grant.check().inspect_err(|_| self.settle())
    }

    /// Resolves when the guard can no longer be relied on and the work has to stop, and says why: at the deadline, or
    /// as soon as the loss is known. If the lock was asked for with [`Lock::grace`](crate::Lock::grace), the deadline
    /// alone does not resolve it, but the end of the grace does.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only looks.
    pub async fn lost(&self) -> Loss {
        let why = self.grant.stopped().await;
        self.settle();
        why
    }

    /// The states that it goes through from now on.
    pub fn changes(&self) -> GuardChanges {
        GuardChanges { grant: Arc::clone(&self.grant), last: None }
    }

    /// A view of this guard that can be given to others: it cannot release the lock, and does not keep it.
    pub fn lease(&self) -> Lease<F> {
        Lease::new(Arc::clone(&self.grant))
    }

    /// Releases the lock, and waits until that is certain.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] or [`Error::SessionLost`] if it was lost before: nothing of anybody else's was touched.
    /// [`Error::Unknown`] if there was no answer in time; it is repeated in the background.
    ///
    /// # Cancel safety
    ///
    /// A dropped call releases the lock in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let result = self.shared.engine.release(&self.grant).await;
        self.armed = false;
        result
    }

    /// A guard that was lost by the clock alone may still hold the lock in the cell: give it back.
    fn settle(&self) {
        if self.grant.state().is_err() {
            self.shared.engine.give_back(&self.grant);
        }
    }
}

impl Guard<Fenced> {
    /// The fencing token: greater than that of every earlier grant. Hand it to the resource with every write.
    pub fn token(&self) -> Token {
        // Invariant: a fenced keeper has an engine that fences, and that gives a token with each grant.
        self.grant.token.unwrap_or_default()
    }

    /// The token with its lock and mode as one text that any service can check; empty for several locks.
    pub fn sequencer(&self) -> &str {
        self.grant.sequencer()
    }
}

impl<F: Fencing> Drop for Guard<F> {
    fn drop(&mut self) {
        if self.armed {
            self.shared.engine.give_back(&self.grant);
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

/// The states of a guard, one after the other.
#[derive(Debug)]
pub struct GuardChanges {
    grant: Arc<Grant>,
    last: Option<GuardState>,
}

impl GuardChanges {
    /// The next state: at once the present one, then each change. `None` after `Lost`. A state that lasts for less time
    /// than it takes to ask may be skipped, but never `Lost`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a change that was not returned is returned by the next call.
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
