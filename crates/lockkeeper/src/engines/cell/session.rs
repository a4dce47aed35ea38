//! The sessions of a keeper: one for each time to live in use, opened on first use.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::deadline::Deadline;

/// A session without guards and waiters is closed after this time.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) ttl: Duration,
    pub(super) deadline: Arc<Deadline>,
}

/// The slot of a session. There is one for each time to live.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) ttl: Duration,
    pub(super) stage: Stage,
    pub(super) idle_since: Option<Moment>,
    /// Whether its jeopardy was reported.
    pub(super) in_jeopardy: bool,
}

/// State of a slot's session.
#[derive(Debug)]
pub(super) enum Stage {
    /// There is none.
    None,
    /// It was requested.
    Opening,
    /// It exists, but is not attached to this link yet: no operation may use it.
    Detached(Arc<Session>),
    /// It exists and is attached to this link.
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

/// All sessions of a keeper. There are few, so a list is enough.
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

    /// The slot whose session has this ID.
    pub(super) fn by_id(&mut self, id: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.session().is_some_and(|session| session.id == id))
    }

    /// Whether the session is attached to this link.
    pub(super) fn is_ready(&self, session: &Arc<Session>) -> bool {
        self.slots
            .iter()
            .any(|slot| matches!(&slot.stage, Stage::Ready(ready) if Arc::ptr_eq(ready, session)))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.slots.iter().filter_map(Slot::session)
    }

    /// Detaches all sessions from a lost link.
    pub(super) fn detach(&mut self) {
        for slot in &mut self.slots {
            slot.stage = match std::mem::replace(&mut slot.stage, Stage::None) {
                Stage::Ready(session) => Stage::Detached(session),
                // The request to open it is resent with all others.
                stage => stage,
            };
        }
    }

    /// The interval of renewals: a third of the shortest time to live.
    pub(super) fn renewal_interval(&self) -> Option<Duration> {
        self.all().map(|session| session.ttl / 3).min()
    }
}
