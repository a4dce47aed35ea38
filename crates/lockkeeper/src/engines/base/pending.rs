//! Requests that somebody waits for, and the ids under which they can be asked for again (S5).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::watch;

use super::{Backend, Core, locked};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::grant::Grant;

/// How many settled requests are remembered.
const SETTLED_MAX: usize = 256;

pub(super) type Outcome = Option<Result<Arc<Grant>, Error>>;
/// The same id with another time to live is another session's, and another request.
pub(super) type RequestKey = (Duration, SmolStr);

/// A request in hand. When the last who waits for it is gone, it is cancelled, or given back if it was granted.
pub(super) struct Pending<B: Backend> {
    core: Arc<Core<B>>,
    outcome: watch::Receiver<Outcome>,
    taken: AtomicBool,
}

impl<B: Backend> Pending<B> {
    pub(super) fn new(core: Arc<Core<B>>) -> (Arc<Pending<B>>, watch::Sender<Outcome>) {
        let (sender, outcome) = watch::channel(None);
        (Arc::new(Pending { core, outcome, taken: AtomicBool::new(false) }), sender)
    }

    pub(super) async fn answer(&self) -> Result<Arc<Grant>, Error> {
        let mut outcome = self.outcome.clone();
        let answer = match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            // The runtime ends.
            Err(_) => None,
        };
        let answer = answer.unwrap_or(Err(Error::Closed));
        if answer.is_ok() {
            self.taken.store(true, Ordering::Release);
        }
        answer
    }

    fn has_failed(&self) -> bool {
        matches!(&*self.outcome.borrow(), Some(Err(_)))
    }
}

impl<B: Backend> Drop for Pending<B> {
    fn drop(&mut self) {
        if let (false, Some(Ok(grant))) = (*self.taken.get_mut(), &*self.outcome.borrow()) {
            self.core.give_back(grant.number);
        }
    }
}

/// What became of a request that has an id.
enum Known<B: Backend> {
    Asked(Weak<Pending<B>>),
    Granted(Arc<Grant>),
    /// It was released, in the session that has this deadline.
    Settled(Arc<Deadline>),
}

/// The requests that have ids.
pub(super) struct Requests<B: Backend> {
    memory: Mutex<Memory<B>>,
}

struct Memory<B: Backend> {
    known: HashMap<RequestKey, Known<B>>,
    /// The settled ones, oldest first.
    settled: VecDeque<RequestKey>,
}

impl<B: Backend> Default for Requests<B> {
    fn default() -> Self {
        Requests { memory: Mutex::new(Memory { known: HashMap::new(), settled: VecDeque::new() }) }
    }
}

/// What to do with a request that has an id.
pub(super) enum Again<B: Backend> {
    /// It is new.
    New(Arc<Pending<B>>, watch::Sender<Outcome>),
    /// Somebody has asked before: wait with them.
    Join(Arc<Pending<B>>),
    Answer(Result<Arc<Grant>, Error>),
}

impl<B: Backend> Requests<B> {
    pub(super) fn ask(&self, core: &Arc<Core<B>>, key: &RequestKey, lock: &SmolStr) -> Again<B> {
        let known = &mut locked(&self.memory).known;
        match known.get(key) {
            Some(Known::Asked(pending)) => {
                if let Some(pending) = pending.upgrade().filter(|pending| !pending.has_failed()) {
                    return Again::Join(pending);
                }
            }
            Some(Known::Granted(grant)) if grant.deadline.at().is_ok() => {
                return Again::Answer(Ok(Arc::clone(grant)));
            }
            Some(Known::Settled(deadline)) if deadline.at().is_ok() => {
                return Again::Answer(Err(Error::NotHeld { lock: lock.clone() }));
            }
            // Of a session that has ended.
            Some(Known::Granted(_) | Known::Settled(_)) | None => {}
        }
        let (pending, outcome) = Pending::new(Arc::clone(core));
        known.insert(key.clone(), Known::Asked(Arc::downgrade(&pending)));
        Again::New(pending, outcome)
    }

    pub(super) fn granted(&self, key: &RequestKey, grant: &Arc<Grant>) {
        locked(&self.memory).known.insert(key.clone(), Known::Granted(Arc::clone(grant)));
    }

    /// It came to nothing: asked again, it is new.
    pub(super) fn failed(&self, key: &RequestKey) {
        locked(&self.memory).known.remove(key);
    }

    pub(super) fn settled(&self, key: &RequestKey, deadline: &Arc<Deadline>) {
        let Memory { known, settled: order } = &mut *locked(&self.memory);
        known.insert(key.clone(), Known::Settled(Arc::clone(deadline)));
        order.push_back(key.clone());
        if order.len() > SETTLED_MAX
            && let Some(oldest) = order.pop_front()
            && matches!(known.get(&oldest), Some(Known::Settled(_)))
        {
            known.remove(&oldest);
        }
    }
}
