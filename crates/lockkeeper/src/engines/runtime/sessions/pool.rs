//! The sessions of a keeper: one for each time to live and lock-delay in use, opened on first use.

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
    /// When the last acknowledged renewal was sent.
    pub(super) acknowledged: watch::Sender<Moment>,
    /// Notified when a renewal is needed at once.
    pub(super) renew_now: Notify,
}

impl<R: Recipe> Session<R> {
    /// Waits until a renewal sent from now on is acknowledged (true) or the session is lost (false).
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
            self.renew_now.notify_one();
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

/// The kind of a session. Requests of one kind share a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionKind {
    pub(super) ttl: Duration,
    pub(super) lock_delay: Duration,
}

/// The slot of a session.
pub(super) struct Slot<R: Recipe> {
    /// Held while the session is opened; other requests wait for it.
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

    /// Removes an idle session from its slot; false if it is in use.
    pub(super) fn take_if_idle(&self, kind: SessionKind, session: &Arc<Session<R>>) -> bool {
        let slot = self.slot(kind);
        let mut current = locked(&slot.session);
        // The slot and the renewal task each own a reference: without a third there is no guard and no request, and while
        // the slot is locked there will be none.
        let is_idle = Arc::strong_count(session) == 2
            && current.as_ref().is_some_and(|found| Arc::ptr_eq(found, session));
        if is_idle {
            *current = None;
        }
        is_idle
    }
}

impl<R: Recipe> Sessions<R> {
    /// Returns the session of a kind; opens it if there is none.
    pub(super) async fn session(self: &Arc<Self>, kind: SessionKind) -> Result<Arc<Session<R>>, Failure> {
        let slot = self.pool.slot(kind);
        if let Some(session) = slot.live() {
            return Ok(session);
        }
        // On its own task: the session must be registered even if the caller is dropped.
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
            renew_now: Notify::new(),
        });
        if self.runtime.is_closed() {
            let _ = self.recipe.close_session(&session.inner).await;
            return Err(Failure::Refused(Error::Closed));
        }
        *locked(&slot.session) = Some(Arc::clone(&session));
        tokio::spawn(Arc::clone(&self).keep_alive(kind, Arc::clone(&session)));
        Ok(session)
    }

    /// Handles a session that has ended on the server.
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
