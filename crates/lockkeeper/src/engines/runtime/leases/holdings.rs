//! The held grants, by number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Moment;
use crate::engines::runtime::locked;
use crate::engines::runtime::requests::RequestKey;
use crate::events::Event;
use crate::grant::Grant;
use crate::guard::GuardState;

/// A held grant and its renewal.
pub(super) struct Held<L> {
    pub(super) grant: Arc<Grant>,
    pub(super) lease: L,
    pub(super) ttl: Duration,
    pub(super) key: Option<RequestKey>,
    renew_at: Moment,
    /// A renewal is in flight.
    renewing: bool,
    /// A release is in flight: no further renewals, and the answer of a late one is ignored.
    releasing: bool,
    in_jeopardy: bool,
}

impl<L> Held<L> {
    fn is_renewable(&self) -> bool {
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
}

impl<L> Default for Holdings<L> {
    fn default() -> Self {
        Holdings { held: Mutex::default() }
    }
}

impl<L: Clone> Holdings<L> {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Held<L>>> {
        locked(&self.held)
    }

    /// Adds a grant and returns when its renewal is due.
    pub(super) fn insert(
        &self,
        grant: Arc<Grant>,
        lease: L,
        ttl: Duration,
        key: Option<RequestKey>,
    ) -> Moment {
        let now = Moment::now();
        // The lease counts from when the request was sent, which may be some time ago.
        let left = grant.deadline.at().map_or(Duration::ZERO, |deadline| deadline.since(now));
        let renew_at = now.plus(left.min(ttl) / 3);
        let held =
            Held { lease, ttl, key, renew_at, renewing: false, releasing: false, in_jeopardy: false, grant };
        self.all().insert(held.grant.number, held);
        renew_at
    }

    pub(super) fn remove(&self, number: u64) -> Option<Held<L>> {
        self.all().remove(&number)
    }

    /// Whether the grant is being released or was released: then a loss is not reported.
    pub(super) fn is_releasing(&self, number: u64) -> bool {
        self.all().get(&number).is_none_or(|held| held.releasing)
    }

    pub(super) fn take_all(&self) -> Vec<Held<L>> {
        self.all().drain().map(|(_, held)| held).collect()
    }

    /// Marks a grant as being released: it is no longer renewed, but remains until the release is answered.
    pub(super) fn begin_release(&self, number: u64) -> Option<L> {
        let mut held = self.all();
        let held = held.get_mut(&number)?;
        held.releasing = true;
        Some(held.lease.clone())
    }

    /// Takes the renewals that are due.
    pub(super) fn take_due(&self, now: Moment) -> Vec<Due<L>> {
        let mut due = Vec::new();
        for (&number, held) in self.all().iter_mut() {
            if held.is_renewable() && held.renew_at <= now {
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

    /// When the next renewal or deadline is due.
    pub(super) fn next_due(&self) -> Moment {
        let mut next = Moment::NEVER;
        for held in self.all().values() {
            if held.is_renewable() {
                next = next.min(held.renew_at);
            }
            if !held.in_jeopardy {
                next = next.min(held.grant.deadline.at().unwrap_or(Moment::NEVER));
            }
        }
        next
    }

    /// Records an answered renewal and when the next one is due.
    pub(super) fn renewed(&self, number: u64, next: Moment) {
        if let Some(held) = self.all().get_mut(&number) {
            held.renewing = false;
            held.renew_at = next;
        }
    }

    /// Returns the changes of state: events of jeopardy and recovery, and the numbers of lost grants.
    pub(super) fn check_states(&self) -> (Vec<Event>, Vec<u64>) {
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
}
