//! Acquire, for engines whose grants have their own leases.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{Locks, Token};
use smol_str::SmolStr;

use super::{Leases, OwnerId, Recipe, Taken, persist};
use crate::backoff::{self, Backoff};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::engines::runtime::Failure;
use crate::engines::runtime::attempt::{Attempt, Obtained, confirmed};
use crate::engines::{AcquireRequest, Wait};
use crate::error::Error;
use crate::grant::Grant;
use crate::mode::Mode;

/// The poll interval of a waiter without notifications of releases; its upper half is random.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest single wait on a server.
const WAIT_ON_SERVER_MAX: Duration = Duration::from_secs(3_600);

impl<R: Recipe> Leases<R> {
    pub(super) async fn acquire_lease(self: &Arc<Self>, attempt: &Attempt) -> Result<Arc<Grant>, Error> {
        tokio::select! {
            biased;
            () = attempt.abandoned() => Err(Error::Cancelled),
            grant = self.take_in_turn(attempt) => grant,
        }
    }

    async fn take_in_turn(self: &Arc<Self>, attempt: &Attempt) -> Result<Arc<Grant>, Error> {
        let request = &attempt.request;
        let first = first_name(&request.locks);
        let mut taking = Taking::new(self, attempt)?;
        // Requests that can hold the lock together need not be serialized; all others enter the local queue in order,
        // before anything is sent.
        let can_share = request.mode == Mode::Shared || request.capacity.is_some_and(|capacity| capacity > 1);
        if (can_share || request.wait == Wait::No)
            && self.runtime.queues.waiting(&first) == 0
            && let Some(grant) = taking.take(Duration::ZERO).await?
        {
            return Ok(grant);
        }
        if request.wait == Wait::No {
            return Err(attempt.not_granted());
        }
        let place = self.runtime.queues.join(&first);
        let _head = tokio::select! {
            biased;
            head = place.head() => head,
            () = attempt.until_wait_ends() => return Err(attempt.not_granted()),
        };
        if !can_share && let Some(grant) = taking.take(Duration::ZERO).await? {
            return Ok(grant);
        }
        // The first take may have outlasted the caller's wait.
        if Moment::now() >= attempt.wait_ends {
            return Err(attempt.not_granted());
        }
        let mut releases = self.recipe.subscribe(request);
        loop {
            let left = attempt.wait_ends.since(Moment::now()).min(WAIT_ON_SERVER_MAX);
            if let Some(grant) = taking.take(left).await? {
                return Ok(grant);
            }
            let now = Moment::now();
            if now >= attempt.wait_ends {
                return Err(attempt.not_granted());
            }
            let half = POLL_INTERVAL / 2;
            let mut pause = half + Duration::from_micros(backoff::random(half.as_micros() as u64));
            if let Some(free_in) = taking.free_in {
                pause = pause.min(free_in + Duration::from_micros(backoff::random(10_000)));
            }
            tokio::select! {
                () = releases.next() => {}
                () = tokio::time::sleep(pause.min(attempt.wait_ends.since(now))) => {}
            }
        }
    }
}

/// The lock in whose queue a request for several locks waits: the first by name, so always the same one.
fn first_name(locks: &Locks) -> SmolStr {
    locks.as_slice().iter().min().cloned().unwrap_or_default()
}

/// A take that may be in progress on the server. If it is dropped with an unknown outcome, it is rolled back.
struct Taking<'a, R: Recipe> {
    leases: &'a Arc<Leases<R>>,
    attempt: &'a Attempt,
    owner: OwnerId,
    /// The time until the holder's lease ends, as of the last answer.
    free_in: Option<Duration>,
    armed: bool,
}

impl<'a, R: Recipe> Taking<'a, R> {
    fn new(leases: &'a Arc<Leases<R>>, attempt: &'a Attempt) -> Result<Taking<'a, R>, Error> {
        Ok(Taking { leases, attempt, owner: OwnerId::random()?, free_in: None, armed: false })
    }

    fn request(&self) -> &'a AcquireRequest {
        &self.attempt.request
    }

    /// Retries the take until there is an answer; `None` if the lock is busy.
    async fn take(&mut self, wait: Duration) -> Result<Option<Arc<Grant>>, Error> {
        let obtained = match R::WAITS_ON_SERVER && !wait.is_zero() {
            true => Obtained::AfterWait,
            false => Obtained::AtOnce,
        };
        let mut backoff = Backoff::default();
        loop {
            self.armed = true;
            let taken = self.leases.recipe.take(self.request(), &self.owner, wait).await;
            match self.leases.observed(taken) {
                Ok(Taken::Busy { free_in }) => {
                    self.armed = false;
                    self.free_in = free_in;
                    return Ok(None);
                }
                Ok(Taken::Granted { lease, token, deadline }) => {
                    if confirmed(obtained, &deadline, self.renew(&deadline, &lease)).await {
                        self.armed = false;
                        return Ok(Some(self.granted(lease, token, deadline)));
                    }
                    // The lease ended before its answer arrived: release it, and take the lock again as another owner.
                    self.leases.spawn_release(lease, self.request().ttl);
                    self.owner = OwnerId::random()?;
                }
                Err(Failure::Unreachable(why)) => {
                    let pause = backoff.next_pause();
                    if Moment::now().plus(pause) >= self.attempt.give_up_at {
                        let address = self.leases.recipe.address();
                        return Err(Failure::Unreachable(why).into_error(&address));
                    }
                    tokio::time::sleep(pause).await;
                }
                Err(failure) => return Err(failure.into_error(&self.leases.recipe.address())),
            }
        }
    }

    /// Renews the lease once; false if it is not certainly held afterwards.
    async fn renew(&self, deadline: &Deadline, lease: &R::Lease) -> bool {
        let sent = Moment::now();
        if !matches!(self.leases.recipe.renew(lease, self.request().ttl).await, Ok(true)) {
            return false;
        }
        deadline.renew(sent, self.request().ttl);
        deadline.at().is_ok_and(|at| Moment::now() < at)
    }

    fn granted(&self, lease: R::Lease, token: Option<Token>, deadline: Arc<Deadline>) -> Arc<Grant> {
        let request = self.request();
        let grant = Arc::new(Grant {
            number: self.leases.runtime.next_number(),
            locks: request.locks.clone(),
            mode: request.mode,
            token,
            sequencer: OnceLock::new(),
            session: None,
            deadline,
            grace: request.grace,
            works_in_jeopardy: request.works_in_jeopardy,
            lost: AtomicU8::new(0),
        });
        // Before the insertion into the holdings: a loss removes the key again.
        if let Some(key) = &self.attempt.key {
            self.leases.runtime.requests.granted(key, &grant);
        }
        let key = self.attempt.key.clone();
        let renew_at = self.leases.holdings.insert(Arc::clone(&grant), lease, request.ttl, key);
        if renew_at.0 < self.leases.next_check.load(Ordering::Acquire) {
            self.leases.rescheduled.notify_one();
        }
        grant
    }
}

impl<R: Recipe> Drop for Taking<'_, R> {
    fn drop(&mut self) {
        if self.armed {
            let (leases, request) = (Arc::clone(self.leases), Arc::clone(&self.attempt.request));
            let owner = self.owner.clone();
            self.leases.runtime.background.spawn(async move {
                persist(request.ttl, || leases.recipe.roll_back(&request, &owner)).await;
            });
        }
    }
}
