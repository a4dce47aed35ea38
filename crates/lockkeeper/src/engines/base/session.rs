//! The sessions of a keeper: one for each time to live that is in use, opened when first needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::{Notify, watch};

use super::{Backend, Core, Failure, Opened, locked};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{Error, Loss};
use crate::events::Event;

/// An open session.
pub(super) struct Session<B: Backend> {
    pub(super) id: String,
    pub(super) ttl: Duration,
    pub(super) deadline: Arc<Deadline>,
    pub(super) inner: B::Session,
    /// When the last renewal that was acknowledged was sent.
    pub(super) acknowledged: watch::Sender<Moment>,
    /// Somebody wants a renewal now.
    pub(super) wanted: Notify,
}

impl<B: Backend> Session<B> {
    /// Whether a renewal that was sent from now on is acknowledged; false if the session is lost instead.
    pub(super) async fn confirmed(&self) -> bool {
        let since = Moment::now();
        let mut acknowledged = self.acknowledged.subscribe();
        loop {
            if self.deadline.at().is_err() {
                return false;
            }
            if *acknowledged.borrow_and_update() >= since {
                return true;
            }
            self.wanted.notify_one();
            if acknowledged.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Resolves when the session is lost.
    pub(super) async fn lost(&self) {
        let mut changed = self.deadline.subscribe();
        while self.deadline.at().is_ok() {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.deadline.at().is_err()
    }
}

/// What sets sessions apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) ttl: Duration,
    pub(super) lock_delay: Duration,
}

/// The place of a session.
pub(super) struct Slot<B: Backend> {
    /// Whoever comes first opens it; the others wait.
    opening: tokio::sync::Mutex<()>,
    session: Mutex<Option<Arc<Session<B>>>>,
}

impl<B: Backend> Slot<B> {
    fn live(&self) -> Option<Arc<Session<B>>> {
        locked(&self.session).clone().filter(|session| !session.is_lost())
    }
}

/// All sessions of a keeper.
pub(super) struct Sessions<B: Backend> {
    slots: Mutex<HashMap<Kind, Arc<Slot<B>>>>,
}

impl<B: Backend> Default for Sessions<B> {
    fn default() -> Self {
        Sessions { slots: Mutex::default() }
    }
}

impl<B: Backend> Sessions<B> {
    fn slot(&self, kind: Kind) -> Arc<Slot<B>> {
        let mut slots = locked(&self.slots);
        let slot = slots
            .entry(kind)
            .or_insert_with(|| Arc::new(Slot { opening: Default::default(), session: Mutex::default() }));
        Arc::clone(slot)
    }

    pub(super) fn all(&self) -> Vec<Arc<Session<B>>> {
        locked(&self.slots).values().filter_map(|slot| slot.live()).collect()
    }

    /// Takes a session that nobody uses out of its place; false if somebody does.
    pub(super) fn take_if_idle(&self, kind: Kind, session: &Arc<Session<B>>) -> bool {
        let slot = self.slot(kind);
        let mut place = locked(&slot.session);
        // The place has one, its upkeep has one: with no third there is no guard and no request, and none can come
        // while the place is locked.
        let is_idle = Arc::strong_count(session) == 2
            && place.as_ref().is_some_and(|found| Arc::ptr_eq(found, session));
        if is_idle {
            *place = None;
        }
        is_idle
    }
}

impl<B: Backend> Core<B> {
    /// The session of a kind; opens it if there is none.
    pub(super) async fn session(self: &Arc<Self>, kind: Kind) -> Result<Arc<Session<B>>, Failure> {
        let slot = self.sessions.slot(kind);
        if let Some(session) = slot.live() {
            return Ok(session);
        }
        // On a task of its own: a session that was opened for a caller who has gone must not be forgotten.
        let opening = tokio::spawn(Arc::clone(self).open_session(kind, slot));
        opening.await.unwrap_or(Err(Failure::Refused(Error::Closed)))
    }

    async fn open_session(
        self: Arc<Self>,
        kind: Kind,
        slot: Arc<Slot<B>>,
    ) -> Result<Arc<Session<B>>, Failure> {
        let _opening = slot.opening.lock().await;
        if let Some(session) = slot.live() {
            return Ok(session);
        }
        let sent = Moment::now();
        let timeout = self.options.request_timeout;
        let opened = tokio::time::timeout(timeout, self.backend.open(kind.ttl, kind.lock_delay)).await;
        let Opened { id, session, ttl } = match opened {
            Ok(opened) => opened?,
            Err(_) => return Err(Failure::unreachable(format!("no answer within {timeout:?}"))),
        };
        let session = Arc::new(Session {
            id,
            ttl,
            deadline: Arc::new(Deadline::new(sent, ttl)),
            inner: session,
            acknowledged: watch::Sender::new(sent),
            wanted: Notify::new(),
        });
        if self.is_closed() {
            let _ = self.backend.close(&session.inner).await;
            return Err(Failure::Refused(Error::Closed));
        }
        *locked(&slot.session) = Some(Arc::clone(&session));
        tokio::spawn(Arc::clone(&self).upkeep(kind, Arc::clone(&session)));
        Ok(session)
    }

    /// The engine says that a session has ended.
    pub(super) fn session_lost(&self, session: &Session<B>) {
        if session.deadline.at().is_ok() {
            session.deadline.lose(Loss::SessionExpired);
            session.acknowledged.send_modify(|_| {});
            self.tell(Event::SessionLost { session: SmolStr::new(&session.id) });
        }
    }

    /// Guards are lost first, then the sessions end.
    pub(super) async fn shut_down(self: Arc<Self>) {
        if self.closed.send_replace(true) {
            return;
        }
        let sessions = self.sessions.all();
        for session in &sessions {
            session.deadline.lose(Loss::Closed);
            session.acknowledged.send_modify(|_| {});
        }
        let held: Vec<_> = locked(&self.held).drain().collect();
        drop(held);
        for session in sessions {
            // After its time to live it has ended by itself.
            let _ = tokio::time::timeout(session.ttl, self.close_session(&session)).await;
        }
        self.backend.end().await;
        *locked(&self.events) = None;
    }

    pub(super) async fn close_session(&self, session: &Session<B>) {
        let mut pause = super::Pause::default();
        while let Err(Failure::Unreachable(_)) = self.backend.close(&session.inner).await {
            pause.next().await;
        }
    }
}
