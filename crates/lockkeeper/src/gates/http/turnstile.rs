//! Requests under way, and the rule that one with a higher token begins only when those with lower ones have ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use lockkeeper_core::Token;
use tokio::sync::Notify;

use crate::error::Error;

/// All requests under way, by lock.
#[derive(Debug, Default)]
pub(super) struct Turnstile {
    locks: Mutex<HashMap<String, UnderWay>>,
}

/// Those of one lock. It is there for as long as there are any.
#[derive(Debug, Default)]
struct UnderWay {
    // Few: holders of one lock do not come by the thousand.
    requests: Vec<(Token, Arc<Cut>)>,
    one_ended: Arc<Notify>,
}

/// How a request is told to send no more of its body. One for each request.
#[derive(Debug, Default)]
pub(super) struct Cut {
    /// The newer token that came; 0 if none did.
    newer: AtomicU64,
    /// The handler has seen its body fail.
    was_felt: AtomicBool,
    body: AtomicWaker,
}

/// A request is under way under one lock until this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    turnstile: Arc<Turnstile>,
    lock: String,
    token: Token,
    cut: Arc<Cut>,
}

impl Turnstile {
    /// Counts a request as under way. This comes before the check of its token, so that whoever raises the token later
    /// finds it here.
    pub(super) fn enter(self: &Arc<Self>, lock: &str, token: Token, cut: &Arc<Cut>) -> Permit {
        let permit =
            Permit { turnstile: Arc::clone(self), lock: lock.to_owned(), token, cut: Arc::clone(cut) };
        self.locked().entry(lock.to_owned()).or_default().requests.push((token, Arc::clone(cut)));
        permit
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, UnderWay>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Waits until no request with a lower token is under way. This comes after the token was raised: from then on no lower
    /// one comes in.
    ///
    /// Most end by themselves at once. Bodies that are still being sent after a tenth of the limit are cut off: whoever sends
    /// them may be stopped.
    pub(super) async fn alone(&self, limit: Duration) -> Result<(), Error> {
        let waited = async {
            if tokio::time::timeout(limit / 10, self.older_have_ended(false)).await.is_err() {
                self.older_have_ended(true).await;
            }
        };
        tokio::time::timeout(limit, waited).await.map_err(|_| {
            Error::unavailable(format!(
                "a request with an older token for \"{}\" is still under way after {} s, and this one has to wait for its end: \
                 try again",
                self.lock,
                limit.as_secs_f32()
            ))
        })
    }

    async fn older_have_ended(&self, cut_off: bool) {
        while let Some(one_ended) = self.older(cut_off) {
            one_ended.await;
        }
    }

    /// When to look again; `None` if no older ones are under way.
    fn older(&self, cut_off: bool) -> Option<impl Future<Output = ()> + use<>> {
        let locks = self.turnstile.locked();
        let under_way = locks.get(&self.lock)?;
        let mut found = false;
        for (_, cut) in under_way.requests.iter().filter(|(token, _)| *token < self.token) {
            found = true;
            if cut_off {
                cut.cut(self.token);
            }
        }
        // Made while nobody can end: no end is missed.
        found.then(|| Arc::clone(&under_way.one_ended).notified_owned())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut locks = self.turnstile.locked();
        let Some(under_way) = locks.get_mut(&self.lock) else { return };
        under_way.requests.retain(|(_, cut)| !Arc::ptr_eq(cut, &self.cut));
        under_way.one_ended.notify_waiters();
        if under_way.requests.is_empty() {
            locks.remove(&self.lock);
        }
    }
}

impl Cut {
    fn cut(&self, newer: Token) {
        self.newer.store(newer.0, Ordering::Release);
        self.body.wake();
    }

    /// Whether the body has to end; whoever asks is woken when that changes.
    pub(super) fn is_cut(&self, waker: &Waker) -> bool {
        self.body.register(waker);
        let is_cut = self.newer.load(Ordering::Acquire) != 0;
        self.was_felt.fetch_or(is_cut, Ordering::AcqRel);
        is_cut
    }

    /// The newer token, if the handler has seen its body fail because of it.
    pub(super) fn felt(&self) -> Option<Token> {
        self.was_felt.load(Ordering::Acquire).then(|| Token(self.newer.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_higher_token_waits_for_lower_ones_and_for_nobody_else() {
        let turnstile = Arc::new(Turnstile::default());
        let enter = |lock: &str, token| turnstile.enter(lock, Token(token), &Arc::default());
        let (one, same, other) = (enter("a", 1), enter("a", 1), enter("b", 1));
        one.alone(Duration::ZERO).await.unwrap();
        same.alone(Duration::ZERO).await.unwrap();
        let two = enter("a", 2);
        // The lower one does not wait for the higher.
        one.alone(Duration::ZERO).await.unwrap();
        assert_eq!(two.alone(Duration::from_millis(1)).await.unwrap_err().code(), "unavailable");
        let waiting = tokio::spawn(async move { two.alone(Duration::from_secs(10)).await });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(same);
        waiting.await.unwrap().unwrap();
        drop(other);
        assert!(turnstile.locked().is_empty(), "nothing is remembered of requests that ended");
    }
}
