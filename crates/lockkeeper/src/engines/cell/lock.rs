//! Acquire and release, from the caller's side.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Cell;
use super::wait::Waiting;
use super::work::Request;
use crate::clock::Moment;
use crate::engines::{AcquireRequest, Wait};
use crate::error::{Error, Loss};
use crate::grant::Grant;
use crate::guard::GuardState;

impl Cell {
    pub(super) async fn acquire_lock(&self, request: Arc<AcquireRequest>) -> Result<Arc<Grant>, Error> {
        let requested_at = Moment::now();
        let limit = self.limit(request.wait);
        loop {
            let number = self.next_number();
            let (mut waiting, reply) = Waiting::new(self, number);
            self.send(Request::Acquire { number, request: Arc::clone(&request), requested_at, reply }, limit)
                .await?;
            let grant = waiting.answer().await?;
            // The lease of the grant may have expired meanwhile: wait until it is renewed, or acquire again.
            if grant.state() == Ok(GuardState::Held) || self.renewed(&grant, requested_at, limit).await? {
                waiting.done();
                return Ok(grant);
            }
        }
    }

    /// Waits until a grant in jeopardy is held again (true) or lost (false).
    async fn renewed(
        &self,
        grant: &Grant,
        requested_at: Moment,
        limit: Option<Duration>,
    ) -> Result<bool, Error> {
        let renewed = async {
            match grant.state() {
                Ok(GuardState::Jeopardy) => {
                    grant.changed_from(GuardState::Jeopardy).await == GuardState::Held
                }
                Ok(state) => state == GuardState::Held,
                Err(_) => false,
            }
        };
        match limit {
            None => Ok(renewed.await),
            Some(limit) => {
                let left = requested_at.plus(limit).since(Moment::now());
                tokio::time::timeout(left, renewed).await.map_err(|_| {
                    Error::unavailable(
                        "the lock was granted, but the session could not be renewed in time: try again",
                    )
                })
            }
        }
    }

    /// How long an acquire may take while the cell is unreachable.
    fn limit(&self, wait: Wait) -> Option<Duration> {
        match wait {
            Wait::No => Some(self.request_timeout),
            Wait::For(limit) => Some(limit.max(self.request_timeout)),
            Wait::Forever => None,
        }
    }

    pub(super) async fn release_lock(&self, grant: &Grant) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let result = match self
            .send(Request::Release { number: grant.number, reply }, Some(self.request_timeout))
            .await
        {
            Ok(()) => answer.await.unwrap_or(Err(Error::Closed)),
            Err(error) => {
                self.background_releases.send(grant.number).map_err(|_| Error::Closed)?;
                return Err(error);
            }
        };
        match (result, grant.state()) {
            // The session is lost, not only this lock.
            (Err(Error::NotHeld { .. }), Err(Loss::SessionExpired)) => Err(Error::SessionLost),
            (Err(Error::NotHeld { .. }), Err(Loss::Closed)) => Err(Error::Closed),
            (result, _) => result,
        }
    }
}
