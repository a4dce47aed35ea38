//! The sessions of a keeper: one for each time to live that is in use, opened when first needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::{Notify, watch};

use super::{Opened, Recipe, Sessions};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::engines::runtime::{Failure, locked};
use crate::error::{Error, Loss};
use crate::events::Event;

/// An open session.
pub(super) struct Session<R: Recipe> {
    pub(super) id: String,
    pub(super) ttl: Duration,
    pub(super) deadline: Arc<Deadline>,
    pub(super) inner: R::Session,
    /// When the last renewal that was acknowledged was sent.
    pub(super) acknowledged: watch::Sender<Moment>,
    /// A renewal is needed now.
    pub(super) wanted: Notify,
}

impl<R: Recipe> Session<R> {
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

/// Sessions of one kind are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionKind {
    pub(super) ttl: Duration,
    pub(super) lock_delay: Duration,
}

/// The place of a session.
pub(super) struct Slot<R: Recipe> {
    /// Whoever comes first opens it; the others wait.
    opening: tokio::sync::Mutex<()>,
    session: Mutex<Option<Arc<Session<R>>>>,
}

impl<R: Recipe> Slot<R> {
    fn live(&self) -> Option<Arc<Session<R>>> {
        locked(&self.session).clone().filter(|session| !session.is_lost())
    }
}

/// All sessions of a keeper.
pub(super) struct SessionPool<R: Recipe> {
    slots: Mutex<HashMap<SessionKind, Arc<Slot<R>>>>,
}

impl<R: Recipe> Default for SessionPool<R> {
    fn default() -> Self {
        SessionPool { slots: Mutex::default() }
    }
}

impl<R: Recipe> SessionPool<R> {
    fn slot(&self, kind: SessionKind) -> Arc<Slot<R>> {
        let mut slots = locked(&self.slots);
        let slot = slots
            .entry(kind)
            .or_insert_with(|| Arc::new(Slot { opening: Default::default(), session: Mutex::default() }));
        Arc::clone(slot)
    }

    pub(super) fn all(&self) -> Vec<Arc<Session<R>>> {
        locked(&self.slots).values().filter_map(|slot| slot.live()).collect()
    }

    /// Takes a session that nobody uses out of its slot; false if somebody does.
    pub(super) fn take_if_idle(&self, kind: SessionKind, session: &Arc<Session<R>>) -> bool {
        let slot = self.slot(kind);
        let mut place = locked(&slot.session);
        // The place has one, its renewal task has one: with no third there is no guard and no request, and none can come
        // while the place is locked.
        let is_idle = Arc::strong_count(session) == 2
            && place.as_ref().is_some_and(|found| Arc::ptr_eq(found, session));
        if is_idle {
            *place = None;
        }
        is_idle
    }
}

impl<R: Recipe> Sessions<R> {
    /// The session of a kind; opens it if there is none.
    pub(super) async fn session(self: &Arc<Self>, kind: SessionKind) -> Result<Arc<Session<R>>, Failure> {
        let slot = self.pool.slot(kind);
        if let Some(session) = slot.live() {
            return Ok(session);
        }
        // On a task of its own: a session that was opened for a caller who has gone must not be forgotten.
        let opening = tokio::spawn(Arc::clone(self).open_session(kind, slot));
        opening.await.unwrap_or(Err(Failure::Refused(Error::Closed)))
    }

    async fn open_session(
        self: Arc<Self>,
        kind: SessionKind,
        slot: Arc<Slot<R>>,
    ) -> Result<Arc<Session<R>>, Failure> {
        let _opening = slot.opening.lock().await;
        if let Some(session) = slot.live() {
            return Ok(session);
        }
        let sent = Moment::now();
        let timeout = self.runtime.options.request_timeout;
        let opened = tokio::time::timeout(timeout, self.recipe.open(kind.ttl, kind.lock_delay)).await;
        let Opened { id, session, ttl } = match opened {
            Ok(opened) => opened?,
            Err(_) => return Err(Failure::no_answer_within(timeout)),
        };
        let session = Arc::new(Session {
            id,
            ttl,
            deadline: Arc::new(Deadline::new(sent, ttl)),
            inner: session,
            acknowledged: watch::Sender::new(sent),
            wanted: Notify::new(),
        });
        if self.runtime.is_closed() {
            let _ = self.recipe.close_session(&session.inner).await;
            return Err(Failure::Refused(Error::Closed));
        }
        *locked(&slot.session) = Some(Arc::clone(&session));
        tokio::spawn(Arc::clone(&self).keep_alive(kind, Arc::clone(&session)));
        Ok(session)
    }

    /// The server says that a session has ended.
    pub(super) fn session_lost(&self, session: &Session<R>) {
        if session.deadline.at().is_ok() {
            session.deadline.lose(Loss::SessionExpired);
            session.acknowledged.send_modify(|_| {});
            self.runtime.emit(Event::SessionLost { session: SmolStr::new(&session.id) });
        }
    }

    pub(super) async fn close_session(&self, session: &Session<R>) {
        let mut backoff = Backoff::default();
        while let Err(Failure::Unreachable(_)) = self.recipe.close_session(&session.inner).await {
            backoff.wait().await;
        }
    }
}
