//! The sessions of a keeper: one for each time to live that is in use, opened when first needed.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::deadline::Deadline;

/// A session with no guard and no waiter is closed after this long.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) ttl: Duration,
    pub(super) deadline: Arc<Deadline>,
}

/// The place of a session: there is one for each time to live.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) ttl: Duration,
    pub(super) stage: Stage,
    pub(super) idle_since: Option<Moment>,
    /// Its jeopardy was reported.
    pub(super) in_jeopardy: bool,
}

/// How far a slot's session is.
#[derive(Debug)]
pub(super) enum Stage {
    /// There is none.
    None,
    /// It was asked for.
    Opening,
    /// It exists, but this link does not speak for it yet: nothing may be asked in its name.
    Detached(Arc<Session>),
    /// It exists, and this link speaks for it.
    Ready(Arc<Session>),
}

impl Slot {
    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        match &self.stage {
            Stage::None | Stage::Opening => None,
            Stage::Detached(session) | Stage::Ready(session) => Some(session),
        }
    }
}

/// All sessions of a keeper. There are few, so they are looked up one by one.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) slots: Vec<Slot>,
}

impl Sessions {
    /// The slot for a time to live.
    pub(super) fn slot(&mut self, ttl: Duration) -> &mut Slot {
        let index = self.slots.iter().position(|slot| slot.ttl == ttl).unwrap_or_else(|| {
            self.slots.push(Slot { ttl, stage: Stage::None, idle_since: None, in_jeopardy: false });
            self.slots.len() - 1
        });
        &mut self.slots[index]
    }

    /// The slot whose session has this id.
    pub(super) fn by_id(&mut self, id: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.session().is_some_and(|session| session.id == id))
    }

    /// This link speaks for the session.
    pub(super) fn is_ready(&self, session: &Arc<Session>) -> bool {
        self.slots
            .iter()
            .any(|slot| matches!(&slot.stage, Stage::Ready(ready) if Arc::ptr_eq(ready, session)))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.slots.iter().filter_map(Slot::session)
    }

    /// The link is gone.
    pub(super) fn detach(&mut self) {
        for slot in &mut self.slots {
            slot.stage = match std::mem::replace(&mut slot.stage, Stage::None) {
                Stage::Ready(session) => Stage::Detached(session),
                // The request to open it is sent again with all others.
                stage => stage,
            };
        }
    }

    /// How often they are renewed: at a third of the shortest time to live.
    pub(super) fn renewal_interval(&self) -> Option<Duration> {
        self.all().map(|session| session.ttl / 3).min()
    }
}
