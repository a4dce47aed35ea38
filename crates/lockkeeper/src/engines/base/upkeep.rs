//! The one task of a session: renewals, jeopardy, and the end of what nobody uses.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::session::{Kind, Session};
use super::{Backend, Core, Failure, Pause, locked};
use crate::clock::{Moment, sleep_towards};
use crate::error::Loss;
use crate::events::Event;

/// A session with no guard and no request is closed after this long.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// A renewal is not given up earlier than this, however short the time to live.
const PATIENCE_MIN: Duration = Duration::from_millis(500);

impl<B: Backend> Core<B> {
    pub(super) async fn upkeep(self: Arc<Self>, kind: Kind, session: Arc<Session<B>>) {
        tokio::select! {
            () = self.until_closed() => {}
            () = self.report_jeopardy(&session) => {}
            is_idle = self.renew_until_idle(kind, &session) => {
                if is_idle {
                    session.deadline.lose(Loss::Closed);
                    self.close_session(&session).await;
                }
            }
        }
    }

    /// Renews until the session is lost (false) or nobody needs it (true).
    async fn renew_until_idle(&self, kind: Kind, session: &Arc<Session<B>>) -> bool {
        let interval = session.ttl / 3;
        let mut last_used = Moment::now();
        let mut pause = Pause::default();
        let mut connected = true;
        loop {
            let due = session.acknowledged.borrow().plus(interval);
            tokio::select! {
                () = session.wanted.notified() => {}
                () = self.backend.alarmed(&session.inner) => self.suspend(session),
                () = sleep_towards(due) => if Moment::now() < due { continue },
            }
            let sent = Moment::now();
            let limit = interval.max(PATIENCE_MIN);
            let renewed = match tokio::time::timeout(limit, self.backend.renew(&session.inner)).await {
                Ok(renewed) => renewed,
                Err(_) => {
                    self.backend.is_silent();
                    Err(Failure::unreachable(format!("renewals are not answered within {limit:?}")))
                }
            };
            match renewed {
                Ok(()) => {
                    pause = Pause::default();
                    self.renewed(session, sent);
                    if !std::mem::replace(&mut connected, true) {
                        self.tell(Event::Connected { address: self.backend.address().into() });
                    }
                }
                Err(Failure::Gone) => {
                    self.session_lost(session);
                    return false;
                }
                Err(Failure::Unreachable(why)) => {
                    if std::mem::replace(&mut connected, false) {
                        self.tell(Event::Disconnected { why });
                    }
                    pause.next().await;
                }
                Err(Failure::Refused(error)) => {
                    // Rights can be taken away and given back: the deadline alone decides.
                    tracing::warn!(engine = self.backend.capabilities().engine, %error, "a session cannot be renewed");
                    pause.next().await;
                }
            }
            self.watch_long_held(session);
            if Arc::strong_count(session) > 2 {
                last_used = Moment::now();
            } else if Moment::now().since(last_used) >= IDLE_MAX && self.sessions.take_if_idle(kind, session)
            {
                return true;
            }
        }
    }

    /// The engine itself does not know whether the session lives.
    fn suspend(&self, session: &Session<B>) {
        let is_before_deadline = session.deadline.at().is_ok_and(|at| Moment::now() < at);
        if session.deadline.suspend() && is_before_deadline {
            self.tell(Event::Jeopardy { session: SmolStr::new(&session.id), ttl: session.ttl });
        }
    }

    fn renewed(&self, session: &Session<B>, sent: Moment) {
        let was_in_jeopardy =
            session.deadline.is_suspended() || session.deadline.at().is_ok_and(|at| at <= Moment::now());
        session.deadline.renew(sent, session.ttl);
        session.acknowledged.send_replace(sent);
        if was_in_jeopardy && session.deadline.at().is_ok_and(|at| at > Moment::now()) {
            self.tell(Event::Recovered { session: SmolStr::new(&session.id) });
        }
    }

    /// Tells of each jeopardy once.
    async fn report_jeopardy(&self, session: &Session<B>) {
        let mut changed = session.deadline.subscribe();
        loop {
            let Ok(deadline) = session.deadline.at() else {
                // The other half of the task ends it.
                return std::future::pending().await;
            };
            if Moment::now() < deadline {
                tokio::select! {
                    _ = changed.changed() => {}
                    () = sleep_towards(deadline) => {}
                }
                continue;
            }
            if !session.deadline.is_suspended() {
                self.tell(Event::Jeopardy { session: SmolStr::new(&session.id), ttl: session.ttl });
            }
            // A renewal that ends a jeopardy is told to all who look.
            while session.deadline.at() == Ok(deadline) {
                let _ = changed.changed().await;
            }
        }
    }

    /// Grants that are held for longer than a renewal are watched: somebody may take them away. Short ones cost nothing.
    fn watch_long_held(&self, session: &Arc<Session<B>>) {
        for held in locked(&self.held).values_mut() {
            if held.watcher.is_some() || !Arc::ptr_eq(&held.session, session) {
                continue;
            }
            let (backend, session) = (Arc::clone(&self.backend), Arc::clone(session));
            let (grant, ticket) = (Arc::clone(&held.grant), Arc::clone(&held.ticket));
            let events = locked(&self.events).clone();
            let watcher = tokio::spawn(async move {
                let mut pause = Pause::default();
                while let Err(failure) = backend.taken_away(&session.inner, &ticket).await {
                    if matches!(failure, Failure::Gone) {
                        return;
                    }
                    pause.next().await;
                }
                // With the session gone, the loss of this one is no news.
                if session.confirmed().await
                    && grant.lose(Loss::TakenAway)
                    && let Some(events) = events
                {
                    let _ = events.send(Event::GrantLost {
                        lock: grant.name().clone(),
                        token: grant.token.unwrap_or_default().0,
                        why: "taken away".into(),
                    });
                }
            });
            held.watcher = Some(super::release::Watcher(watcher.abort_handle()));
        }
    }
}
