//! The task of a session: renewals, jeopardy, and the close of an idle session.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::pool::{Session, SessionKind};
use super::{Recipe, Sessions};
use crate::backoff::Backoff;
use crate::clock::{Moment, sleep_towards};
use crate::engines::runtime::{Failure, locked};
use crate::error::Loss;
use crate::events::Event;

/// A session without guards and requests is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The shortest timeout of a renewal, however short the time to live.
const RENEWAL_TIMEOUT_MIN: Duration = Duration::from_millis(500);

impl<R: Recipe> Sessions<R> {
    pub(super) async fn keep_alive(self: Arc<Self>, kind: SessionKind, session: Arc<Session<R>>) {
        tokio::select! {
            () = self.runtime.until_closed() => {}
            () = self.report_jeopardy(&session) => {}
            is_idle = self.renew_until_idle(kind, &session) => {
                if is_idle {
                    session.deadline.lose(Loss::Closed);
                    self.close_session(&session).await;
                }
            }
        }
    }

    /// Renews until the session is lost (false) or idle (true).
    async fn renew_until_idle(self: &Arc<Self>, kind: SessionKind, session: &Arc<Session<R>>) -> bool {
        let interval = session.ttl / 3;
        let mut last_used = Moment::now();
        let mut backoff = Backoff::default();
        loop {
            let due = session.acknowledged.borrow().plus(interval);
            tokio::select! {
                () = session.renew_now.notified() => {}
                () = self.recipe.suspended(&session.inner) => self.suspend(session),
                () = sleep_towards(due) => if Moment::now() < due { continue },
            }
            let sent = Moment::now();
            let limit = interval.max(RENEWAL_TIMEOUT_MIN);
            let renewed = match tokio::time::timeout(limit, self.recipe.renew(&session.inner)).await {
                Ok(renewed) => renewed,
                Err(_) => {
                    self.recipe.on_renewal_timeout();
                    Err(Failure::unreachable(format!("no answer to a renewal within {limit:?}")))
                }
            };
            match renewed {
                Ok(()) => {
                    backoff = Backoff::default();
                    self.renewed(session, sent);
                    self.runtime.note_connected(|| self.recipe.address());
                }
                Err(Failure::Gone) => {
                    self.session_lost(session);
                    return false;
                }
                Err(Failure::Unreachable(why)) => {
                    self.runtime.note_disconnected(&why);
                    backoff.wait().await;
                }
                Err(Failure::Refused(error)) => {
                    // Permissions can be revoked and restored: only the deadline decides about a loss.
                    tracing::warn!(engine = self.recipe.capabilities().engine, %error, "failed to renew a session");
                    backoff.wait().await;
                }
            }
            self.watch_long_held(session);
            if Arc::strong_count(session) > 2 {
                last_used = Moment::now();
            } else if Moment::now().since(last_used) >= IDLE_MAX && self.pool.take_if_idle(kind, session) {
                return true;
            }
        }
    }

    /// Marks the session as suspended until it is renewed.
    fn suspend(&self, session: &Session<R>) {
        let is_before_deadline = session.deadline.at().is_ok_and(|at| Moment::now() < at);
        if session.deadline.suspend() && is_before_deadline {
            self.runtime.emit(Event::Jeopardy { session: SmolStr::new(&session.id), ttl: session.ttl });
        }
    }

    fn renewed(&self, session: &Session<R>, sent: Moment) {
        let was_in_jeopardy =
            session.deadline.is_suspended() || session.deadline.at().is_ok_and(|at| at <= Moment::now());
        session.deadline.renew(sent, session.ttl);
        session.acknowledged.send_replace(sent);
        if was_in_jeopardy && session.deadline.at().is_ok_and(|at| at > Moment::now()) {
            self.runtime.emit(Event::Recovered { session: SmolStr::new(&session.id) });
        }
    }

    /// Reports each jeopardy once.
    async fn report_jeopardy(&self, session: &Session<R>) {
        let mut changed = session.deadline.subscribe();
        loop {
            let Ok(deadline) = session.deadline.at() else {
                // `renew_until_idle` ends the task.
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
                self.runtime.emit(Event::Jeopardy { session: SmolStr::new(&session.id), ttl: session.ttl });
            }
            // A renewal that ends a jeopardy notifies all subscribers.
            while session.deadline.at() == Ok(deadline) {
                let _ = changed.changed().await;
            }
        }
    }

    /// Watches grants that are held for longer than a renewal interval, because they may be taken away. Shorter ones cost
    /// nothing.
    fn watch_long_held(self: &Arc<Self>, session: &Arc<Session<R>>) {
        for held in locked(&self.held).values_mut() {
            if held.watcher.is_some() || !Arc::ptr_eq(&held.session, session) {
                continue;
            }
            let (recipe, session) = (Arc::clone(&self.recipe), Arc::clone(session));
            let (grant, ticket) = (Arc::clone(&held.grant), Arc::clone(&held.ticket));
            let sessions = Arc::downgrade(self);
            let watcher = tokio::spawn(async move {
                let mut backoff = Backoff::default();
                while let Err(failure) = recipe.taken_away(&session.inner, &ticket).await {
                    if matches!(failure, Failure::Gone) {
                        return;
                    }
                    backoff.wait().await;
                }
                // If the session is lost, the loss was already reported.
                if session.confirmed().await
                    && grant.lose(Loss::TakenAway)
                    && let Some(sessions) = sessions.upgrade()
                {
                    sessions.runtime.emit(Event::GrantLost {
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
