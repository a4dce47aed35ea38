//! Requests in flight, and the rule that a request with a higher token starts only after those with lower tokens have ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use lockkeeper_core::Token;
use tokio::sync::Notify;

use crate::error::Error;

/// All requests in flight, by lock.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    locks: Mutex<HashMap<String, LockRequests>>,
}

/// The requests in flight of one lock. Removed with the last one.
#[derive(Debug, Default)]
struct LockRequests {
    // A list, because a lock has few requests at a time.
    list: Vec<(Token, Arc<BodyAbort>)>,
    ended: Arc<Notify>,
}

/// Aborts the body of a request. One for each request.
#[derive(Debug, Default)]
pub(super) struct BodyAbort {
    /// The newer token that aborts the body; 0 if there is none.
    newer: AtomicU64,
    /// Whether the handler has seen its body fail.
    was_observed: AtomicBool,
    body: AtomicWaker,
}

/// Keeps a request in flight for one lock until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    in_flight: Arc<InFlight>,
    lock: String,
    token: Token,
    abort: Arc<BodyAbort>,
}

impl InFlight {
    /// Registers a request as in flight. Call it before the check of its token, so that a request that raises the token
    /// later finds this one.
    pub(super) fn enter(self: &Arc<Self>, lock: &str, token: Token, abort: &Arc<BodyAbort>) -> Permit {
        let permit =
            Permit { in_flight: Arc::clone(self), lock: lock.to_owned(), token, abort: Arc::clone(abort) };
        self.locked().entry(lock.to_owned()).or_default().list.push((token, Arc::clone(abort)));
        permit
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, LockRequests>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Waits until no request with a lower token is in flight. Call it after raising the token: from then on no lower one is
    /// admitted.
    ///
    /// Most requests end soon. Bodies still being sent after a tenth of the limit are aborted: their sender may be stopped.
    pub(super) async fn wait_for_older(&self, limit: Duration) -> Result<(), Error> {
        let waited = async {
            if tokio::time::timeout(limit / 10, self.older_requests_ended(false)).await.is_err() {
                self.older_requests_ended(true).await;
            }
        };
        tokio::time::timeout(limit, waited).await.map_err(|_| {
            Error::unavailable(format!(
                "a request with an older token for \"{}\" is still in flight after {} s, and this one must wait for it: try \
                 again",
                self.lock,
                limit.as_secs_f32()
            ))
        })
    }

    async fn older_requests_ended(&self, abort_bodies: bool) {
        while let Some(ended) = self.next_end_if_older(abort_bodies) {
            ended.await;
        }
    }

    /// Resolves when a request of the lock ends; `None` if no older one is in flight.
    fn next_end_if_older(&self, abort_bodies: bool) -> Option<impl Future<Output = ()> + use<>> {
        let locks = self.in_flight.locked();
        let requests = locks.get(&self.lock)?;
        let mut found = false;
        for (_, abort) in requests.list.iter().filter(|(token, _)| *token < self.token) {
            found = true;
            if abort_bodies {
                abort.abort(self.token);
            }
        }
        // Created under the mutex, so no end is missed.
        found.then(|| Arc::clone(&requests.ended).notified_owned())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut locks = self.in_flight.locked();
        let Some(requests) = locks.get_mut(&self.lock) else { return };
        requests.list.retain(|(_, abort)| !Arc::ptr_eq(abort, &self.abort));
        requests.ended.notify_waiters();
        if requests.list.is_empty() {
            locks.remove(&self.lock);
        }
    }
}

impl BodyAbort {
    fn abort(&self, newer: Token) {
        self.newer.store(newer.0, Ordering::Release);
        self.body.wake();
    }

    /// Whether the body must fail. Registers the waker for a change.
    pub(super) fn is_aborted(&self, waker: &Waker) -> bool {
        self.body.register(waker);
        let is_aborted = self.newer.load(Ordering::Acquire) != 0;
        self.was_observed.fetch_or(is_aborted, Ordering::AcqRel);
        is_aborted
    }

    /// The newer token, if the handler has seen its body fail because of it.
    pub(super) fn observed(&self) -> Option<Token> {
        self.was_observed.load(Ordering::Acquire).then(|| Token(self.newer.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn higher_token_waits_only_for_lower_ones_of_its_lock() {
        let in_flight = Arc::new(InFlight::default());
        let enter = |lock: &str, token| in_flight.enter(lock, Token(token), &Arc::default());
        let (one, same, other) = (enter("a", 1), enter("a", 1), enter("b", 1));
        one.wait_for_older(Duration::ZERO).await.unwrap();
        same.wait_for_older(Duration::ZERO).await.unwrap();
        let two = enter("a", 2);
        // The lower token does not wait for the higher one.
        one.wait_for_older(Duration::ZERO).await.unwrap();
        assert_eq!(two.wait_for_older(Duration::from_millis(1)).await.unwrap_err().code(), "unavailable");
        let waiting = tokio::spawn(async move { two.wait_for_older(Duration::from_secs(10)).await });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(same);
        waiting.await.unwrap().unwrap();
        drop(other);
        assert!(in_flight.locked().is_empty(), "ended requests are removed");
    }
}
