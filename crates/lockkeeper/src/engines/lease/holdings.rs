//! What is held, by number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;

use crate::clock::Moment;
use crate::events::Event;
use crate::grant::Grant;
use crate::guard::GuardState;

/// A grant and how it is kept.
pub(super) struct Held<L> {
    pub(super) grant: Arc<Grant>,
    pub(super) lease: L,
    pub(super) ttl: Duration,
    pub(super) request: Option<SmolStr>,
    renew_at: Moment,
    /// A renewal is on its way.
    renewing: bool,
    /// A release is on its way: no further renewal, and what a late one says is of no interest.
    releasing: bool,
    in_jeopardy: bool,
}

impl<L> Held<L> {
    fn is_kept(&self) -> bool {
        !self.renewing && !self.releasing
    }
}

/// A renewal that is due.
pub(super) struct Due<L> {
    pub(super) number: u64,
    pub(super) grant: Arc<Grant>,
    pub(super) lease: L,
    pub(super) ttl: Duration,
}

pub(super) struct Holdings<L> {
    held: Mutex<HashMap<u64, Held<L>>>,
    requests: Mutex<HashMap<SmolStr, Request>>,
}

/// What became of a request: the grant, if there was one.
type Request = Arc<tokio::sync::Mutex<Option<Arc<Grant>>>>;

/// The right to work on a request. Dropped without a grant, the request is forgotten.
pub(super) struct RequestPlace<'a, L: Clone> {
    holdings: &'a Holdings<L>,
    id: &'a SmolStr,
    outcome: tokio::sync::OwnedMutexGuard<Option<Arc<Grant>>>,
}

impl<L: Clone> RequestPlace<'_, L> {
    pub(super) fn granted(&self) -> Option<&Arc<Grant>> {
        self.outcome.as_ref()
    }

    pub(super) fn grant(&mut self, grant: &Arc<Grant>) {
        *self.outcome = Some(Arc::clone(grant));
    }
}

impl<L: Clone> Drop for RequestPlace<'_, L> {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.holdings.forget_request(self.id);
        }
    }
}

impl<L> Default for Holdings<L> {
    fn default() -> Self {
        Holdings { held: Mutex::default(), requests: Mutex::default() }
    }
}

impl<L: Clone> Holdings<L> {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Held<L>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers when it has to be renewed.
    pub(super) fn insert(
        &self,
        grant: Arc<Grant>,
        lease: L,
        ttl: Duration,
        request: Option<SmolStr>,
    ) -> Moment {
        let renew_at = Moment::now().plus(ttl / 3);
        let held = Held {
            lease,
            ttl,
            request,
            renew_at,
            renewing: false,
            releasing: false,
            in_jeopardy: false,
            grant,
        };
        self.all().insert(held.grant.number, held);
        renew_at
    }

    pub(super) fn remove(&self, number: u64) -> Option<Held<L>> {
        let held = self.all().remove(&number)?;
        if let Some(request) = &held.request {
            self.forget_request(request);
        }
        Some(held)
    }

    /// The server says that it is not ours; false if we know why.
    pub(super) fn remove_lost(&self, number: u64) -> bool {
        let is_releasing = self.all().get(&number).is_none_or(|held| held.releasing);
        !is_releasing && self.remove(number).is_some()
    }

    pub(super) fn take_all(&self) -> Vec<Held<L>> {
        self.all().drain().map(|(_, held)| held).collect()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.all().contains_key(&number)
    }

    /// It stays in hand until the release was answered; but it is renewed no more.
    pub(super) fn begin_release(&self, number: u64) -> Option<L> {
        let mut held = self.all();
        let held = held.get_mut(&number)?;
        held.releasing = true;
        Some(held.lease.clone())
    }

    /// What has to be renewed now.
    pub(super) fn take_due(&self, now: Moment) -> Vec<Due<L>> {
        let mut due = Vec::new();
        for (&number, held) in self.all().iter_mut() {
            if held.is_kept() && held.renew_at <= now {
                held.renewing = true;
                due.push(Due {
                    number,
                    grant: Arc::clone(&held.grant),
                    lease: held.lease.clone(),
                    ttl: held.ttl,
                });
            }
        }
        due
    }

    /// When to look again.
    pub(super) fn next_look(&self) -> Moment {
        let mut next = Moment::NEVER;
        for held in self.all().values() {
            if held.is_kept() {
                next = next.min(held.renew_at);
            }
            if !held.in_jeopardy {
                next = next.min(held.grant.deadline.at().unwrap_or(Moment::NEVER));
            }
        }
        next
    }

    /// A renewal was answered: the next one is due then.
    pub(super) fn renewed(&self, number: u64, next: Moment) {
        if let Some(held) = self.all().get_mut(&number) {
            held.renewing = false;
            held.renew_at = next;
        }
    }

    /// What time alone has brought: into jeopardy, out of it, and those that are lost for good.
    pub(super) fn look(&self) -> (Vec<Event>, Vec<u64>) {
        let (mut events, mut lost) = (Vec::new(), Vec::new());
        for (&number, held) in self.all().iter_mut() {
            let session = || smol_str::format_smolstr!("{number}");
            match held.grant.state() {
                Ok(GuardState::Jeopardy) if !held.in_jeopardy => {
                    held.in_jeopardy = true;
                    events.push(Event::Jeopardy { session: session(), ttl: held.ttl });
                }
                Ok(GuardState::Held) if held.in_jeopardy => {
                    held.in_jeopardy = false;
                    events.push(Event::Recovered { session: session() });
                }
                Ok(_) => {}
                Err(_) => lost.push(number),
            }
        }
        (events, lost)
    }

    /// The same request id is the same request: whoever comes second waits for the first.
    pub(super) async fn request<'a>(&'a self, id: &'a SmolStr) -> RequestPlace<'a, L> {
        loop {
            let request = Arc::clone(self.requests().entry(id.clone()).or_default());
            let outcome = Arc::clone(&request).lock_owned().await;
            // It may have been forgotten while we waited: then others are at work on a new one.
            if self.requests().get(id).is_some_and(|known| Arc::ptr_eq(known, &request)) {
                return RequestPlace { holdings: self, id, outcome };
            }
        }
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<SmolStr, Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_request(&self, id: &SmolStr) {
        self.requests().remove(id);
    }
}
