//! Leaving the queue: by a release, a dropped guard, or a dropped acquire.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::pool::Session;
use super::{Held, Recipe, Sessions, Ticket};
use crate::backoff::Backoff;
use crate::engines::runtime::{Failure, locked};
use crate::error::{Error, Loss};
use crate::grant::Grant;

/// The task that detects when a grant is taken away. Aborted with the grant.
pub(super) struct Watcher(pub(super) AbortHandle);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<R: Recipe> Sessions<R> {
    pub(super) async fn release_entry(self: &Arc<Self>, grant: &Grant) -> Result<(), Error> {
        let Some(held) = self.take(grant.number) else { return Err(not_held(grant)) };
        if grant.state() == Err(Loss::TakenAway) {
            return Err(not_held(grant));
        }
        let (reply, left) = oneshot::channel();
        let sessions = Arc::clone(self);
        // On its own task, so that a dropped caller does not stop it halfway.
        self.runtime.background.spawn(async move {
            let _ = reply.send(sessions.leave(&held.session, &held.ticket).await);
        });
        let timeout = self.runtime.options.request_timeout;
        match tokio::time::timeout(timeout, left).await {
            Ok(Ok(Ok(true))) => Ok(()),
            Ok(Ok(Ok(false))) => Err(not_held(grant)),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::Unknown(
                format!(
                    "{} did not answer within {timeout:?}: the lock may still be held; the release is retried in the background",
                    self.recipe.address()
                )
                .into(),
            )),
        }
    }

    /// Removes a grant from the held ones.
    pub(super) fn take(&self, number: u64) -> Option<Held<R>> {
        let held = locked(&self.held).remove(&number)?;
        if let Some(key) = &held.key {
            self.runtime.requests.released(key, &held.grant);
        }
        Some(held)
    }

    pub(super) fn leave_in_background(self: &Arc<Self>, session: Arc<Session<R>>, ticket: Arc<Ticket>) {
        let sessions = Arc::clone(self);
        self.runtime.background.spawn(async move {
            let _ = sessions.leave(&session, &ticket).await;
        });
    }

    /// Leaves the queue, with retries until it succeeds; false if there was no entry.
    pub(super) async fn leave(&self, session: &Session<R>, ticket: &Ticket) -> Result<bool, Error> {
        let mut backoff = Backoff::default();
        let mut may_have_left = false;
        loop {
            if session.is_lost() {
                // The entries of a lost session are gone.
                return Ok(false);
            }
            let limit = self.runtime.options.request_timeout;
            match tokio::time::timeout(limit, self.recipe.leave(&session.inner, ticket)).await {
                Ok(Ok(left)) => return Ok(left || may_have_left),
                Ok(Err(Failure::Gone)) => {
                    self.session_lost(session);
                    return Ok(false);
                }
                Ok(Err(Failure::Refused(error))) => return Err(error),
                Ok(Err(Failure::Unreachable(_))) | Err(_) => may_have_left = true,
            }
            tokio::select! {
                () = self.runtime.until_closed() => return Err(Error::Closed),
                () = session.lost() => {}
                () = backoff.wait() => {}
            }
        }
    }
}

/// The error for a guard that no longer holds its lock.
fn not_held(grant: &Grant) -> Error {
    match grant.deadline.at() {
        Err(Loss::Closed) => Error::Closed,
        // The session is lost, not only this lock.
        Err(_) => Error::SessionLost,
        Ok(_) => Error::NotHeld { lock: grant.name().clone() },
    }
}
