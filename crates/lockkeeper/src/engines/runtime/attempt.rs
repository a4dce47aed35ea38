//! An acquire in progress: its caller, its time limits, and the confirmation of its grant.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use super::requests::{Outcome, RequestKey};
use crate::clock::{Moment, sleep_towards};
use crate::deadline::Deadline;
use crate::engines::{AcquireRequest, Wait};
use crate::error::Error;

/// An acquire in progress.
pub(crate) struct Attempt {
    pub(super) request: Arc<AcquireRequest>,
    pub(super) key: Option<RequestKey>,
    /// `None` if the acquire runs in its caller's future, which the caller drops to cancel it.
    pub(super) outcome: Option<watch::Sender<Outcome>>,
    /// The end of the caller's wait.
    pub(super) wait_ends: Moment,
    /// When to give up on a server that does not answer.
    pub(super) give_up_at: Moment,
}

impl Attempt {
    pub(super) fn new(
        request: Arc<AcquireRequest>,
        key: Option<RequestKey>,
        outcome: Option<watch::Sender<Outcome>>,
        request_timeout: std::time::Duration,
    ) -> Attempt {
        let now = Moment::now();
        let wait_ends = match request.wait {
            Wait::No => now,
            Wait::For(limit) => now.plus(limit),
            Wait::Forever => Moment::NEVER,
        };
        let give_up_at = wait_ends.max(now.plus(request_timeout));
        Attempt { request, key, outcome, wait_ends, give_up_at }
    }

    /// Resolves when the last caller has dropped the result.
    pub(super) async fn abandoned(&self) {
        match &self.outcome {
            Some(outcome) => outcome.closed().await,
            None => std::future::pending().await,
        }
    }

    #[cfg(feature = "_sessions")]
    pub(super) fn is_timed_out(&self) -> bool {
        Moment::now() >= self.give_up_at
    }

    #[cfg(feature = "_sessions")]
    pub(super) async fn until_timed_out(&self) {
        until(self.give_up_at).await;
    }

    pub(super) async fn until_wait_ends(&self) {
        until(self.wait_ends).await;
    }

    /// The error if the lock was not granted in time.
    pub(super) fn not_granted(&self) -> Error {
        let lock = self.request.locks.as_slice()[0].clone();
        match self.request.wait {
            Wait::No => Error::Contended { lock },
            _ => Error::Timeout { lock },
        }
    }
}

async fn until(moment: Moment) {
    while Moment::now() < moment {
        sleep_towards(moment).await;
    }
}

/// How a lock was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obtained {
    /// With the answer to a request that did not wait.
    AtOnce,
    /// After a wait on the server.
    AfterWait,
}

/// Whether a grant can be returned to the caller. After a wait its lease may have expired (etcd-io/etcd#11456), and its
/// deadline counts from a request that was sent before the wait: the lease has to be renewed first. `renew` returns whether it
/// was.
pub(super) async fn confirmed(
    obtained: Obtained,
    deadline: &Deadline,
    renew: impl Future<Output = bool>,
) -> bool {
    let is_held = || deadline.at().is_ok_and(|at| Moment::now() < at) && !deadline.is_suspended();
    (obtained == Obtained::AtOnce && is_held()) || renew.await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn grant_after_a_wait_is_renewed_before_it_is_returned() {
        let deadline = Deadline::new(Moment::now(), Duration::from_secs(60));
        assert!(confirmed(Obtained::AtOnce, &deadline, std::future::ready(false)).await);
        assert!(confirmed(Obtained::AfterWait, &deadline, std::future::ready(true)).await);
        assert!(
            !confirmed(Obtained::AfterWait, &deadline, std::future::ready(false)).await,
            "the lease has expired"
        );
    }

    #[tokio::test]
    async fn grant_with_a_late_answer_is_renewed_too() {
        let long_ago = Moment(Moment::now().0 - 10_000_000_000);
        let deadline = Deadline::new(long_ago, Duration::from_secs(1));
        assert!(!confirmed(Obtained::AtOnce, &deadline, std::future::ready(false)).await);
    }
}
