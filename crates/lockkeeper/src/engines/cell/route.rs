//! Handles the answers and events of the node.

use std::collections::hash_map;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_api::history::LockEventKind;
use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as AnswerKind;
use lockkeeper_api::v1::event::Kind as EventKind;
use lockkeeper_core::mutation::{self, Mutation};
use smol_str::SmolStr;

use super::answer::{ErrorAction, classify, unexpected_answer};
use super::connection::Connection;
use super::session::{Session, Stage};
use super::token;
use super::transport::LinkError;
use super::work::{Acquiring, Entry, Held, Work};
use crate::backoff;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::engines::Wait;
use crate::error::{Error, Loss};
use crate::events::Event as KeeperEvent;

impl Connection {
    pub(super) fn on_frame(&mut self, frame: v1::ServerFrame, now: Moment) {
        for answer in frame.answers {
            self.on_answer(answer, now);
        }
        // After the answers: a grant must be known before its loss.
        for event in frame.events {
            match event.kind {
                Some(EventKind::SessionEnded(ended)) => {
                    if let Some(session) = self.sessions.by_id(&ended.session).and_then(|slot| slot.session())
                    {
                        let session = Arc::clone(session);
                        self.lose_session(&session, now);
                    }
                }
                Some(EventKind::GrantLost(lost)) => self.lose_grant(&lost),
                Some(EventKind::Welcome(welcome)) => self.node = Some(welcome.node_id),
                None => {}
            }
        }
        // Wait for the answers to unrepeatable operations: without them their outcome would be unknown.
        if self.pending_redirect.is_some()
            && !self.has_unrepeatable_in_flight()
            && let Some(leader) = self.pending_redirect.take()
        {
            let why = match &leader {
                Some(leader) => smol_str::format_smolstr!("the leader is at {leader}"),
                None => SmolStr::new_static("the node does not lead the cell"),
            };
            self.drop_link(&LinkError { leader, ..LinkError::new(why) }, now);
        }
    }

    /// Whether an operation is in flight whose outcome would be unknown if the link were dropped.
    fn has_unrepeatable_in_flight(&self) -> bool {
        self.work.values().any(|entry| entry.sent && !entry.work.is_repeatable())
    }

    fn on_answer(&mut self, answer: v1::Answer, now: Moment) {
        let wire = answer.id;
        let number = if self.aliases.is_empty() { wire } else { self.aliases.remove(&wire).unwrap_or(wire) };
        let entry = match self.work.entry(number) {
            hash_map::Entry::Occupied(entry) if entry.get().wire == wire => entry.remove(),
            // Cancelled meanwhile, or resent under another ID.
            _ => return,
        };
        match answer.kind {
            Some(AnswerKind::Error(error)) => self.on_error(number, entry, error, now),
            Some(kind) => {
                self.failures = 0;
                self.redirects = 0;
                self.on_success(number, entry, kind, now);
            }
            None => finish(entry.work, unexpected_answer()),
        }
    }

    fn on_success(&mut self, number: u64, entry: Entry, kind: AnswerKind, now: Moment) {
        match (entry.work, kind) {
            (Work::Acquire(acquiring), AnswerKind::Grant(grant)) => self.on_grant(number, acquiring, grant),
            (Work::Release(releasing), AnswerKind::Done(_)) => {
                if let Some(reply) = releasing.reply {
                    let _ = reply.send(Ok(()));
                }
            }
            (Work::Call { reply, .. }, kind) => drop(reply.send(Ok(kind))),
            (Work::KeepAlive { sessions, sent_at }, AnswerKind::KeepAlive(answer)) => {
                let late = mutation::is_on(Mutation::DeadlineFromAnswer);
                self.on_renewed(&sessions, &answer.ttl_ms, if late { now } else { sent_at }, now);
            }
            (Work::Open { ttl, sent_at }, AnswerKind::OpenSession(opened)) => {
                self.on_opened(ttl, sent_at, opened, now);
            }
            (Work::Attach { session }, AnswerKind::Attach(attached)) => {
                self.on_attached(&session, &attached, now)
            }
            (Work::Cancel { .. } | Work::CloseSession { .. }, _) => {}
            (work, _) => finish(work, unexpected_answer()),
        }
    }

    fn on_grant(&mut self, number: u64, acquiring: Acquiring, grant: v1::Grant) {
        // Invariant: it was sent for a session, and is answered only while that session exists.
        let Some(session) = acquiring.session.clone() else { return };
        let grant = token::granted(number, &acquiring, &session, grant);
        let request = acquiring.request_id(number);
        self.held.insert(number, Held { grant: Arc::clone(&grant), session, request });
        // If the caller is gone, its background release will find the grant here.
        let _ = acquiring.reply.send(Ok(grant));
    }

    fn on_error(&mut self, number: u64, mut entry: Entry, error: v1::Error, now: Moment) {
        match classify(error, &entry.work.lock_name()) {
            ErrorAction::Redirect(leader) => {
                entry.sent = false;
                self.pending_redirect.get_or_insert(leader);
                self.work.insert(number, entry);
            }
            ErrorAction::RetryAfter(pause, error) => self.retry_after(number, entry, pause, error, now),
            ErrorAction::Retry(error) => self.retry(number, entry, false, error, now),
            ErrorAction::Unknown(error) => self.retry(number, entry, true, error, now),
            ErrorAction::SessionLost => {
                if let Some(session) = entry.work.session().cloned() {
                    self.lose_session(&session, now);
                }
                match entry.work {
                    // It never held anything: acquire again in a new session.
                    Work::Acquire(mut acquiring) if self.closing.is_none() => {
                        acquiring.session = None;
                        let entry = Entry::new(number, entry.give_up, Work::Acquire(acquiring));
                        self.submit(number, entry, now);
                    }
                    work => finish(work, Error::SessionLost),
                }
            }
            // These release something: retry them even if the node is at its limits.
            ErrorAction::Final(error @ Error::Limit(_))
                if matches!(
                    entry.work,
                    Work::Release(_) | Work::Cancel { .. } | Work::CloseSession { .. }
                ) =>
            {
                self.retry(number, entry, false, error, now);
            }
            ErrorAction::Final(error) => self.on_final(number, entry, error, now),
        }
    }

    /// Retries after the pause that an overloaded node asked for, if the request has that much time.
    fn retry_after(&mut self, number: u64, mut entry: Entry, pause: Duration, error: Error, now: Moment) {
        let until = now.plus(pause);
        let give_up_at = match &entry.work {
            Work::Acquire(acquiring) => acquiring.give_up(self.options.request_timeout, false),
            // These release something, so they never give up.
            Work::Release(_) | Work::Cancel { .. } | Work::CloseSession { .. } => Moment::NEVER,
            _ => entry.give_up,
        };
        if until >= give_up_at || !entry.work.is_repeatable() {
            self.on_final(number, entry, error, now);
            return;
        }
        entry.sent = false;
        entry.not_before = Some(until);
        self.submit(number, entry, now);
    }

    /// Retries soon, if the operation did not happen or is repeatable.
    fn retry(&mut self, number: u64, mut entry: Entry, may_have_happened: bool, error: Error, now: Moment) {
        match entry.work {
            // The next renewal replaces this one. Send it soon, before the lease expires.
            Work::KeepAlive { sessions, .. } => {
                if !sessions.is_empty() {
                    self.failures += 1;
                    let pause = backoff::pause_in_fail_over(self.failures);
                    self.renew_at = self.renew_at.min(now.plus(pause));
                }
            }
            work if may_have_happened && !work.is_repeatable() => finish(work, error),
            _ => {
                entry.sent = false;
                entry.resent |= may_have_happened;
                entry.refused = match error {
                    Error::Unavailable(why) => Some(why),
                    _ => None,
                };
                self.failures += 1;
                self.retry_at = self.retry_at.min(now.plus(backoff::pause_in_fail_over(self.failures)));
                self.work.insert(number, entry);
            }
        }
    }

    fn on_final(&mut self, number: u64, entry: Entry, error: Error, now: Moment) {
        match (entry.work, error) {
            // The earlier release has succeeded.
            (Work::Release(releasing), Error::NotHeld { .. }) if entry.resent => {
                if let Some(reply) = releasing.reply {
                    let _ = reply.send(Ok(()));
                }
            }
            // It was granted, its answer was lost, and an operator released part of it by force: release the rest too.
            (Work::Acquire(acquiring), error @ Error::NotHeld { .. }) => {
                self.cancel(number, &acquiring, now);
                let _ = acquiring.reply.send(Err(error));
            }
            // The wait expired before the retry.
            (Work::Acquire(acquiring), Error::Contended { lock })
                if matches!(acquiring.request.wait, Wait::For(_)) =>
            {
                let _ = acquiring.reply.send(Err(Error::Timeout { lock }));
            }
            (Work::Open { ttl, .. }, error) => {
                // All acquires that wait for this session fail with its error.
                self.sessions.slots.retain(|slot| slot.ttl != ttl);
                let concerned = |entry: &Entry| matches!(&entry.work, Work::Acquire(acquiring) if acquiring.request.ttl == ttl);
                let numbers: Vec<u64> = self
                    .work
                    .iter()
                    .filter(|(_, entry)| concerned(entry))
                    .map(|(&number, _)| number)
                    .collect();
                for number in numbers {
                    if let Some(entry) = self.work.remove(&number) {
                        finish(entry.work, error.clone());
                    }
                }
            }
            // No node will renew these sessions again: report the loss to their holders at once.
            (Work::KeepAlive { sessions, .. }, error @ Error::Unauthenticated(_)) => {
                tracing::warn!(%error, "lost the sessions: the cell refused to renew them");
                for session in &sessions {
                    self.end_session(session, Loss::Refused, now);
                }
            }
            (Work::Attach { session }, error @ Error::Unauthenticated(_)) => {
                tracing::warn!(%error, "lost the session: the cell refused to attach it");
                self.end_session(&session, Loss::Refused, now);
            }
            // The session cannot be attached to this link; another one may work.
            (Work::Attach { .. }, error) => {
                tracing::warn!(%error, "failed to attach a session: reconnecting");
                self.drop_link(&LinkError::new(error.to_string()), now);
            }
            (work, error) => finish(work, error),
        }
    }

    fn on_renewed(&mut self, sessions: &[Arc<Session>], ttls: &[u64], sent_at: Moment, now: Moment) {
        self.unanswered_since = None;
        for (session, &ttl_ms) in sessions.iter().zip(ttls) {
            if ttl_ms == 0 {
                self.lose_session(session, now);
                continue;
            }
            session.deadline.renew(sent_at, std::time::Duration::from_millis(ttl_ms));
            if let Some(slot) = self.sessions.by_id(&session.id)
                && std::mem::take(&mut slot.in_jeopardy)
            {
                self.emit(KeeperEvent::Recovered { session: SmolStr::new(&session.id) });
            }
        }
    }

    fn on_opened(
        &mut self,
        asked_ttl: std::time::Duration,
        sent_at: Moment,
        opened: v1::OpenSessionResponse,
        now: Moment,
    ) {
        let ttl = std::time::Duration::from_millis(opened.ttl_ms);
        let deadline = Arc::new(Deadline::new(sent_at, ttl));
        let session = Arc::new(Session { id: opened.session, ttl, deadline });
        if self.closing.is_some() {
            self.close_session(session, Loss::Closed, now);
            return;
        }
        self.renew_at = self.renew_at.min(sent_at.plus(ttl / 3));
        self.idle_at = self.idle_at.min(now.plus(super::session::IDLE_MAX / 4));
        let slot = self.sessions.slot(asked_ttl);
        slot.stage = Stage::Ready(session);
        slot.in_jeopardy = false;
        self.submit_all(now);
    }

    /// Handles the attachment of a session. Grants that it no longer has were taken away while there was no link.
    fn on_attached(&mut self, session: &Arc<Session>, attached: &v1::AttachResponse, now: Moment) {
        let Some(slot) = self.sessions.by_id(&session.id) else { return };
        slot.stage = Stage::Ready(Arc::clone(session));
        let mut locks: super::work::ByNumber<usize> = Default::default();
        for grant in &attached.grants {
            *locks.entry(grant.token).or_default() += grant.locks.len();
        }
        let mut gone = Vec::new();
        self.held.retain(|_, held| {
            let token = held.grant.token.unwrap_or_default().0;
            let (wanted, left) = (held.grant.locks.as_slice().len(), locks.get(&token).copied().unwrap_or(0));
            if !Arc::ptr_eq(&held.session, session) || left >= wanted {
                return true;
            }
            if held.grant.lose(Loss::TakenAway) {
                gone.push((held.grant.name().clone(), token));
            }
            // The remaining ones of several locks still have to be released.
            left > 0
        });
        for (lock, token) in gone {
            self.emit(KeeperEvent::GrantLost { lock, token, why: "taken away".into() });
        }
        self.submit_all(now);
    }

    /// Ends a lost session: its guards are lost too, and its waiters acquire again in a new one.
    pub(super) fn lose_session(&mut self, session: &Arc<Session>, now: Moment) {
        self.end_session(session, Loss::SessionExpired, now);
    }

    fn end_session(&mut self, session: &Arc<Session>, why: Loss, now: Moment) {
        session.deadline.lose(why);
        let Some(slot) = self.sessions.by_id(&session.id) else { return };
        slot.stage = Stage::None;
        slot.in_jeopardy = false;
        self.emit(KeeperEvent::SessionLost { session: SmolStr::new(&session.id) });
        self.held.retain(|_, held| !Arc::ptr_eq(&held.session, session));
        let mut ended = Vec::new();
        for (&number, entry) in &mut self.work {
            if !entry.work.session().is_some_and(|named| Arc::ptr_eq(named, session)) {
                continue;
            }
            match &mut entry.work {
                Work::Acquire(acquiring) => {
                    acquiring.session = None;
                    entry.resent = false;
                    if std::mem::take(&mut entry.sent) {
                        // This link may still answer the old request, which must not be mistaken for the new one.
                        entry.wire = self.numbers.fetch_add(1, Ordering::Relaxed);
                        self.aliases.insert(entry.wire, number);
                    }
                }
                _ => ended.push(number),
            }
        }
        for number in ended {
            if let Some(entry) = self.work.remove(&number) {
                finish(entry.work, Error::SessionLost);
            }
        }
        self.submit_all(now);
    }

    /// Ends a grant that was released by force or wounded.
    fn lose_grant(&mut self, lost: &v1::GrantLost) {
        let found = self.held.iter().find(|(_, held)| {
            held.grant.token.unwrap_or_default().0 == lost.token && held.session.id == lost.session
        });
        let Some((&number, held)) = found else { return };
        let why = match LockEventKind::from(lost.why.as_str()) {
            LockEventKind::Wounded => Loss::Wounded,
            _ => Loss::TakenAway,
        };
        let _ = held.grant.lose(why);
        // The remaining ones of several locks still have to be released.
        if held.grant.locks.as_slice().len() == 1 {
            self.held.remove(&number);
        }
        self.emit(KeeperEvent::GrantLost {
            lock: SmolStr::new(&lost.lock),
            token: lost.token,
            why: SmolStr::new(&lost.why),
        });
    }
}

/// Reports an error to the caller, if there is one.
pub(super) fn finish(work: Work, error: Error) {
    match work {
        Work::Acquire(acquiring) => drop(acquiring.reply.send(Err(error))),
        Work::Release(releasing) => {
            if let Some(reply) = releasing.reply {
                let _ = reply.send(Err(error));
            }
        }
        Work::Call { reply, .. } => drop(reply.send(Err(error))),
        Work::Cancel { .. }
        | Work::Open { .. }
        | Work::Attach { .. }
        | Work::KeepAlive { .. }
        | Work::CloseSession { .. } => {}
    }
}
