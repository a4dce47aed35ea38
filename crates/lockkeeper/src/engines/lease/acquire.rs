//! Acquire, on the caller's side.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::Locks;
use smol_str::SmolStr;

use super::{Inner, OwnerId, Store, Taken, is_passing, persist};
use crate::backoff;
use crate::clock::Moment;
use crate::engines::{Ask, Wait, ask};
use crate::error::Error;
use crate::grant::Grant;
use crate::guard::GuardState;
use crate::mode::Mode;

/// Without news of a release, a waiter looks by itself: after a random time between half of this and this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// An engine that waits on its server comes back at least this often.
const WAIT_ON_SERVER_MAX: Duration = Duration::from_secs(3_600);

impl<S: Store> Inner<S> {
    pub(super) async fn acquire(self: &Arc<Self>, ask: Arc<Ask>) -> Result<Arc<Grant>, Error> {
        ask::check(&ask, self.store.capabilities())?;
        let Some(request) = ask.request.clone() else { return self.acquire_once(ask).await };
        let mut place = self.holdings.request(&request).await;
        if let Some(grant) = place.granted()
            && self.holdings.contains(grant.number)
        {
            return match grant.locks.as_slice() == ask.locks.as_slice() {
                true => Ok(Arc::clone(grant)),
                false => Err(Error::invalid(format!(
                    "the request id \"{request}\" was used for \"{}\": use each for one acquire only",
                    grant.name()
                ))),
            };
        }
        let grant = self.acquire_once(ask).await?;
        place.grant(&grant);
        Ok(grant)
    }

    async fn acquire_once(self: &Arc<Self>, ask: Arc<Ask>) -> Result<Arc<Grant>, Error> {
        let mut closed = self.closed.subscribe();
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => Err(Error::Closed),
            grant = self.acquire_in_time(ask) => grant,
        }
    }

    async fn acquire_in_time(self: &Arc<Self>, ask: Arc<Ask>) -> Result<Arc<Grant>, Error> {
        let asked_at = Moment::now();
        let wait_until = match ask.wait {
            Wait::No => asked_at,
            Wait::For(limit) => asked_at.plus(limit),
            Wait::Forever => Moment::NEVER,
        };
        // How long the server may stay silent.
        let give_up = wait_until.max(asked_at.plus(self.options.request_timeout));
        let first = first_name(&ask.locks);
        let mut asking =
            Asking { inner: self, ask: &ask, owner: OwnerId::random()?, free_in: None, armed: false };
        // Those who can hold it together need not ask one after the other; all others queue up in the order in which they
        // came, before anything is sent.
        let together = ask.mode == Mode::Shared || ask.capacity.is_some_and(|capacity| capacity > 1);
        if (together || ask.wait == Wait::No)
            && !self.turns.somebody_waits(&first)
            && let Some(grant) = asking.attempt(Duration::ZERO, give_up).await?
        {
            return Ok(grant);
        }
        if ask.wait == Wait::No {
            return Err(ask::not_granted(&ask));
        }
        let place = self.turns.queue_up(&first);
        let left = wait_until.since(Moment::now());
        let turn = tokio::time::timeout(left, place.turn()).await.map_err(|_| ask::not_granted(&ask))?;
        if !together && let Some(grant) = asking.attempt(Duration::ZERO, give_up).await? {
            return Ok(grant);
        }
        let mut news = self.store.listen(&ask).await;
        loop {
            let left = wait_until.since(Moment::now()).min(WAIT_ON_SERVER_MAX);
            if let Some(grant) = asking.attempt(left, give_up).await? {
                drop(turn);
                return Ok(grant);
            }
            let now = Moment::now();
            if now >= wait_until {
                return Err(ask::not_granted(&ask));
            }
            let half = LOOK_AGAIN / 2;
            let mut pause = half + Duration::from_micros(backoff::random(half.as_micros() as u64));
            if let Some(free_in) = asking.free_in {
                pause = pause.min(free_in + Duration::from_micros(backoff::random(10_000)));
            }
            tokio::select! {
                () = news.next() => {}
                () = tokio::time::sleep(pause.min(wait_until.since(now))) => {}
            }
        }
    }

    fn granted(&self, ask: &Ask, lease: S::Lease, grant: Grant) -> Arc<Grant> {
        let grant = Arc::new(grant);
        let renew_at = self.holdings.insert(Arc::clone(&grant), lease, ask.ttl, ask.request.clone());
        if renew_at.0 < self.looks_at.load(Ordering::Acquire) {
            self.rescheduled.notify_one();
        }
        grant
    }
}

/// Several locks wait in the queue of one of them, always the same.
fn first_name(locks: &Locks) -> SmolStr {
    locks.as_slice().iter().min().cloned().unwrap_or_default()
}

/// A request that may be on its way. Dropped while nobody knows whether it was granted, it is undone.
struct Asking<'a, S: Store> {
    inner: &'a Arc<Inner<S>>,
    ask: &'a Ask,
    owner: OwnerId,
    /// When the holder's lease ends, as of the last answer.
    free_in: Option<Duration>,
    armed: bool,
}

impl<S: Store> Asking<'_, S> {
    /// Asks until there is an answer; `None` if the lock is busy.
    async fn attempt(&mut self, wait: Duration, give_up: Moment) -> Result<Option<Arc<Grant>>, Error> {
        let mut failures = 0;
        loop {
            self.armed = true;
            let taken = self.inner.store.take(self.ask, &self.owner, wait).await;
            match self.inner.heard(taken) {
                Ok(Taken::Busy { free_in }) => {
                    self.armed = false;
                    self.free_in = free_in;
                    return Ok(None);
                }
                Ok(Taken::Granted { lease, token, deadline }) => {
                    let grant = Grant {
                        number: self.inner.numbers.fetch_add(1, Ordering::Relaxed),
                        locks: self.ask.locks.clone(),
                        mode: self.ask.mode,
                        token,
                        sequencer: OnceLock::new(),
                        session: None,
                        deadline,
                        grace: self.ask.grace,
                        works_in_jeopardy: self.ask.works_in_jeopardy,
                        lost: AtomicU8::new(0),
                    };
                    if grant.state() == Ok(GuardState::Held) || self.renewed(&grant, &lease).await {
                        self.armed = false;
                        return Ok(Some(self.inner.granted(self.ask, lease, grant)));
                    }
                    // Its time was over before we heard of it: it is given back, and asked for again as somebody new.
                    self.inner.give_in_background(lease, self.ask.ttl);
                    self.owner = OwnerId::random()?;
                }
                Err(error) if is_passing(&error) => {
                    failures += 1;
                    let pause = backoff::pause(failures);
                    if Moment::now().plus(pause) >= give_up {
                        return Err(error);
                    }
                    tokio::time::sleep(pause).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn renewed(&self, grant: &Grant, lease: &S::Lease) -> bool {
        let sent = Moment::now();
        if !matches!(self.inner.store.renew(lease, self.ask.ttl).await, Ok(true)) {
            return false;
        }
        grant.deadline.renew(sent, self.ask.ttl);
        grant.state() == Ok(GuardState::Held)
    }
}

impl<S: Store> Drop for Asking<'_, S> {
    fn drop(&mut self) {
        if self.armed {
            let (inner, ask, owner) = (Arc::clone(self.inner), self.ask.clone(), self.owner.clone());
            self.inner.in_background(async move {
                persist(ask.ttl, || inner.store.undo(&ask, &owner)).await;
            });
        }
    }
}
