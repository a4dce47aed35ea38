//! What is held, by number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Moment;
use crate::engines::runtime::locked;
use crate::engines::runtime::requests::RequestKey;
use crate::events::Event;
use crate::grant::Grant;
use crate::guard::GuardState;

/// A grant and how it is kept.
pub(super) struct Held<L> {
    pub(super) grant: Arc<Grant>,
    pub(super) lease: L,
    pub(super) ttl: Duration,
    pub(super) key: Option<RequestKey>,
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

    /// Answers when it has to be renewed.
    pub(super) fn insert(
        &self,
        grant: Arc<Grant>,
        lease: L,
        ttl: Duration,
        key: Option<RequestKey>,
    ) -> Moment {
        let now = Moment::now();
        // The lease counts from when the request was sent, which may be a while ago.
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

    /// Whether a release is under way, or has been: then a loss is no news.
    pub(super) fn is_releasing(&self, number: u64) -> bool {
        self.all().get(&number).is_none_or(|held| held.releasing)
    }

    pub(super) fn take_all(&self) -> Vec<Held<L>> {
        self.all().drain().map(|(_, held)| held).collect()
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
}
