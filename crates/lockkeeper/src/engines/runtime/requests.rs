//! Pending acquires, and the request IDs that make retries idempotent (S5).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::Locks;
use smol_str::SmolStr;
use tokio::sync::watch;

use super::locked;
use crate::deadline::Deadline;
use crate::engines::AcquireRequest;
use crate::error::Error;
use crate::grant::Grant;

/// The number of released requests that are remembered.
const RELEASED_MAX: usize = 256;

/// The result of an acquire; `None` while it is pending.
pub(crate) type Outcome = Option<Result<Arc<Grant>, Error>>;
/// Identifies a request: the same ID with another time to live belongs to another session, hence is another request.
pub(crate) type RequestKey = (Duration, SmolStr);

/// Releases grants whose callers are gone.
pub(crate) trait BackgroundRelease: Send + Sync {
    /// Releases a grant in the background. A second call has no effect.
    fn release_in_background(self: Arc<Self>, number: u64);
}

/// A pending acquire, shared by all callers that wait for it. When the last of them is gone, it is cancelled, or released if
/// it was granted.
pub(super) struct PendingAcquire {
    owner: Arc<dyn BackgroundRelease>,
    outcome: watch::Receiver<Outcome>,
    /// A caller has received the grant.
    delivered: AtomicBool,
}

impl PendingAcquire {
    pub(super) fn new(owner: Arc<dyn BackgroundRelease>) -> (Arc<PendingAcquire>, watch::Sender<Outcome>) {
        let (sender, outcome) = watch::channel(None);
        (Arc::new(PendingAcquire { owner, outcome, delivered: AtomicBool::new(false) }), sender)
    }

    pub(super) async fn result(&self) -> Result<Arc<Grant>, Error> {
        let mut outcome = self.outcome.clone();
        let result = match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            // The runtime is shutting down.
            Err(_) => None,
        };
        let result = result.unwrap_or(Err(Error::Closed));
        if result.is_ok() {
            self.delivered.store(true, Ordering::Release);
        }
        result
    }

    fn has_failed(&self) -> bool {
        matches!(&*self.outcome.borrow(), Some(Err(_)))
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        if let (false, Some(Ok(grant))) = (*self.delivered.get_mut(), &*self.outcome.borrow()) {
            Arc::clone(&self.owner).release_in_background(grant.number);
        }
    }
}

/// The requests with an ID chosen by the caller.
#[derive(Default)]
pub(super) struct Requests {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    known: HashMap<RequestKey, Known>,
    /// The released requests, oldest first.
    released: VecDeque<RequestKey>,
}

struct Known {
    locks: Locks,
    state: State,
}

enum State {
    Pending(Weak<PendingAcquire>),
    Granted(Arc<Grant>),
    /// Released; the ID stays in use while the session with this deadline exists.
    #[cfg_attr(not(feature = "_sessions"), allow(dead_code))]
    Released(Arc<Deadline>),
}

/// Result of looking up a request ID.
pub(super) enum Lookup {
    New(Arc<PendingAcquire>, watch::Sender<Outcome>),
    Pending(Arc<PendingAcquire>),
    Answered(Result<Arc<Grant>, Error>),
}

impl Requests {
    pub(super) fn look_up(
        &self,
        owner: impl FnOnce() -> Arc<dyn BackgroundRelease>,
        key: &RequestKey,
        request: &AcquireRequest,
    ) -> Lookup {
        let mut memory = locked(&self.memory);
        if let Some(entry) = memory.known.get(key)
            && let Some(found) = entry.lookup()
        {
            let locks = entry.locks.clone();
            // Unlock first: dropping `found` may release a grant, which locks the memory again.
            drop(memory);
            if locks.as_slice() == request.locks.as_slice() {
                return found;
            }
            return Lookup::Answered(Err(Error::invalid(format!(
                "the request ID \"{}\" was already used for \"{}\": use each ID for one acquire only",
                key.1,
                locks.as_slice()[0]
            ))));
        }
        let (pending, outcome) = PendingAcquire::new(owner());
        let state = State::Pending(Arc::downgrade(&pending));
        memory.known.insert(key.clone(), Known { locks: request.locks.clone(), state });
        Lookup::New(pending, outcome)
    }

    pub(super) fn granted(&self, key: &RequestKey, grant: &Arc<Grant>) {
        let known = Known { locks: grant.locks.clone(), state: State::Granted(Arc::clone(grant)) };
        locked(&self.memory).known.insert(key.clone(), known);
    }

    /// Forgets a request whose acquire failed or whose lease has ended: the next one with this ID is a new request.
    pub(super) fn forget(&self, key: &RequestKey) {
        locked(&self.memory).known.remove(key);
    }

    /// Records a release: the ID stays in use until the session ends.
    #[cfg(feature = "_sessions")]
    pub(super) fn released(&self, key: &RequestKey, grant: &Grant) {
        let Memory { known, released } = &mut *locked(&self.memory);
        let state = State::Released(Arc::clone(&grant.deadline));
        known.insert(key.clone(), Known { locks: grant.locks.clone(), state });
        released.push_back(key.clone());
        if released.len() > RELEASED_MAX
            && let Some(oldest) = released.pop_front()
            && matches!(known.get(&oldest), Some(Known { state: State::Released(_), .. }))
        {
            known.remove(&oldest);
        }
    }
}

impl Known {
    /// The answer to a retried request; `None` if the ID is free again.
    fn lookup(&self) -> Option<Lookup> {
        match &self.state {
            State::Pending(pending) => {
                pending.upgrade().filter(|pending| !pending.has_failed()).map(Lookup::Pending)
            }
            State::Granted(grant) if grant.deadline.at().is_ok() => {
                Some(Lookup::Answered(Ok(Arc::clone(grant))))
            }
            State::Released(deadline) if deadline.at().is_ok() => {
                Some(Lookup::Answered(Err(Error::NotHeld { lock: self.locks.as_slice()[0].clone() })))
            }
            // Its session has ended.
            State::Granted(_) | State::Released(_) => None,
        }
    }
}
