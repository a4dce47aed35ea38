//! What the node says, and whom it concerns.

use std::collections::hash_map;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as Answered;
use lockkeeper_api::v1::event::Kind as Happened;
use lockkeeper_core::mutation::{self, Mutation};
use smol_str::SmolStr;

use super::answer::{Fate, fate, strange};
use super::connection::Connection;
use super::session::{Session, Stage};
use super::token;
use super::transport::Refused;
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
        // After the answers: a grant that is lost at once must be known first.
        for event in frame.events {
            match event.kind {
                Some(Happened::SessionEnded(ended)) => {
                    if let Some(session) = self.sessions.by_id(&ended.session).and_then(|slot| slot.session())
                    {
                        let session = Arc::clone(session);
                        self.lose_session(&session, now);
                    }
                }
                Some(Happened::GrantLost(lost)) => self.lose_grant(&lost),
                Some(Happened::Welcome(welcome)) => self.node = Some(welcome.node_id),
                None => {}
            }
        }
        // What must not be sent twice is waited for: without its answer it would be in doubt.
        if self.moved.is_some()
            && !self.owes_what_cannot_be_repeated()
            && let Some(leader) = self.moved.take()
        {
            let why = match &leader {
                Some(leader) => smol_str::format_smolstr!("the leader is at {leader}"),
                None => SmolStr::new_static("the node does not lead the cell"),
            };
            self.drop_link(&Refused { leader, ..Refused::because(why) }, now);
        }
    }

    /// Whether something is on this link that would be in doubt without it.
    fn owes_what_cannot_be_repeated(&self) -> bool {
        self.work.values().any(|entry| entry.sent && !entry.work.is_repeatable())
    }

    fn on_answer(&mut self, answer: v1::Answer, now: Moment) {
        let wire = answer.id;
        let number = if self.aliases.is_empty() { wire } else { self.aliases.remove(&wire).unwrap_or(wire) };
        let entry = match self.work.entry(number) {
            hash_map::Entry::Occupied(entry) if entry.get().wire == wire => entry.remove(),
            // Given up meanwhile, or asked again under another id.
            _ => return,
        };
        match answer.kind {
            Some(Answered::Error(error)) => self.on_error(number, entry, error, now),
            Some(kind) => {
                self.failures = 0;
                self.redirects = 0;
                self.on_success(number, entry, kind, now);
            }
            None => finish(entry.work, strange()),
        }
    }

    fn on_success(&mut self, number: u64, entry: Entry, kind: Answered, now: Moment) {
        match (entry.work, kind) {
            (Work::Acquire(acquiring), Answered::Grant(grant)) => self.on_grant(number, acquiring, grant),
            (Work::Release(releasing), Answered::Done(_)) => {
                if let Some(reply) = releasing.reply {
                    let _ = reply.send(Ok(()));
                }
            }
            (Work::Call { reply, .. }, kind) => drop(reply.send(Ok(kind))),
            (Work::KeepAlive { sessions, sent_at }, Answered::KeepAlive(answer)) => {
                let late = mutation::is_on(Mutation::DeadlineFromAnswer);
                self.on_renewed(&sessions, &answer.ttl_ms, if late { now } else { sent_at }, now);
            }
            (Work::Open { ttl, sent_at }, Answered::OpenSession(opened)) => {
                self.on_opened(ttl, sent_at, opened, now);
            }
            (Work::Attach { session }, Answered::Attach(attached)) => {
                self.on_attached(&session, &attached, now)
            }
            (Work::Cancel { .. } | Work::CloseSession { .. }, _) => {}
            (work, _) => finish(work, strange()),
        }
    }

    fn on_grant(&mut self, number: u64, acquiring: Acquiring, grant: v1::Grant) {
        // Invariant: it was sent in the name of a session, and is answered only as long as that lives.
        let Some(session) = acquiring.session.clone() else { return };
        let grant = token::granted(number, &acquiring, &session, grant);
        let request = acquiring.request_id(number);
        self.held.insert(number, Held { grant: Arc::clone(&grant), session, request });
        // If the caller has gone, its give-back is on its way and finds the grant here.
        let _ = acquiring.reply.send(Ok(grant));
    }

    fn on_error(&mut self, number: u64, mut entry: Entry, error: v1::Error, now: Moment) {
        match fate(error, &entry.work.lock_name()) {
            Fate::Elsewhere(leader) => {
                entry.sent = false;
                self.moved.get_or_insert(leader);
                self.work.insert(number, entry);
            }
            Fate::After(pause, error) => self.after(number, entry, pause, error, now),
            Fate::Later(error) => self.again(number, entry, false, error, now),
            Fate::Unknown(error) => self.again(number, entry, true, error, now),
            Fate::SessionLost => {
                if let Some(session) = entry.work.session().cloned() {
                    self.lose_session(&session, now);
                }
                match entry.work {
                    // It never held anything: ask again in a new session.
                    Work::Acquire(mut acquiring) if self.closing.is_none() => {
                        acquiring.session = None;
                        let entry = Entry::new(number, entry.give_up, Work::Acquire(acquiring));
                        self.submit(number, entry, now);
                    }
                    work => finish(work, Error::SessionLost),
                }
            }
            // A node that is at its bounds must still hear of these, or what they give back stays taken.
            Fate::Final(error @ Error::Limit(_))
                if matches!(
                    entry.work,
                    Work::Release(_) | Work::Cancel { .. } | Work::CloseSession { .. }
                ) =>
            {
                self.again(number, entry, false, error, now);
            }
            Fate::Final(error) => self.on_final(number, entry, error, now),
        }
    }

    /// The node has more to do than it can carry. Whoever has the time comes back when it said so.
    fn after(&mut self, number: u64, mut entry: Entry, pause: Duration, error: Error, now: Moment) {
        let until = now.plus(pause);
        let gives_up = match &entry.work {
            Work::Acquire(acquiring) => acquiring.give_up(self.options.request_timeout, false),
            // What these give back stays taken if the node does not hear of it.
            Work::Release(_) | Work::Cancel { .. } | Work::CloseSession { .. } => Moment::NEVER,
            _ => entry.give_up,
        };
        if until >= gives_up || !entry.work.is_repeatable() {
            self.on_final(number, entry, error, now);
            return;
        }
        entry.sent = false;
        entry.not_before = Some(until);
        self.submit(number, entry, now);
    }

    /// It can be tried again in a moment, if it did not happen or if doing it twice does no harm.
    fn again(&mut self, number: u64, mut entry: Entry, may_have_happened: bool, error: Error, now: Moment) {
        match entry.work {
            // The next renewal is the repetition. It comes soon: there is a lease to be kept.
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
            // The first of the two releases did it.
            (Work::Release(releasing), Error::NotHeld { .. }) if entry.resent => {
                if let Some(reply) = releasing.reply {
                    let _ = reply.send(Ok(()));
                }
            }
            // It was granted, its answer was lost, and an operator took part of it away: the rest goes back too.
            (Work::Acquire(acquiring), error @ Error::NotHeld { .. }) => {
                self.cancel(number, &acquiring, now);
                let _ = acquiring.reply.send(Err(error));
            }
            // What was left of the wait when it was asked again was too short to be a wait.
            (Work::Acquire(acquiring), Error::Contended { lock })
                if matches!(acquiring.ask.wait, Wait::For(_)) =>
            {
                let _ = acquiring.reply.send(Err(Error::Timeout { lock }));
            }
            (Work::Open { ttl, .. }, error) => {
                // All who wait for this session get its error.
                self.sessions.slots.retain(|slot| slot.ttl != ttl);
                let concerned = |entry: &Entry| matches!(&entry.work, Work::Acquire(acquiring) if acquiring.ask.ttl == ttl);
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
            // No node will renew them again: whoever holds something hears why at once.
            (Work::KeepAlive { sessions, .. }, error @ Error::Unauthenticated(_)) => {
                tracing::warn!(%error, "the cell refused to renew the session");
                for session in &sessions {
                    self.end_session(session, Loss::Refused, now);
                }
            }
            (Work::Attach { session }, error @ Error::Unauthenticated(_)) => {
                tracing::warn!(%error, "the cell refused the session after a reconnect");
                self.end_session(&session, Loss::Refused, now);
            }
            // The link does not speak for the session, and never will: another one may.
            (Work::Attach { .. }, error) => {
                tracing::warn!(%error, "a session could not be taken over");
                self.drop_link(&Refused::because(error.to_string()), now);
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
                self.tell(KeeperEvent::Recovered { session: SmolStr::new(&session.id) });
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

    /// This link speaks for the session now. Grants that it no longer has were taken away while we were gone.
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
            // What is left of several locks is still ours to give back.
            left > 0
        });
        for (lock, token) in gone {
            self.tell(KeeperEvent::GrantLost { lock, token, why: "gone".into() });
        }
        self.submit_all(now);
    }

    /// The session is lost: its guards with it, and its waiters ask again in a new one.
    pub(super) fn lose_session(&mut self, session: &Arc<Session>, now: Moment) {
        self.end_session(session, Loss::SessionExpired, now);
    }

    fn end_session(&mut self, session: &Arc<Session>, why: Loss, now: Moment) {
        session.deadline.lose(why);
        let Some(slot) = self.sessions.by_id(&session.id) else { return };
        slot.stage = Stage::None;
        slot.in_jeopardy = false;
        self.tell(KeeperEvent::SessionLost { session: SmolStr::new(&session.id) });
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
                        // This link may still answer the old request: it must not be taken for the new one.
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

    /// One grant was taken away by force.
    fn lose_grant(&mut self, lost: &v1::GrantLost) {
        let found = self.held.iter().find(|(_, held)| {
            held.grant.token.unwrap_or_default().0 == lost.token && held.session.id == lost.session
        });
        let Some((&number, held)) = found else { return };
        let why = if lost.why == "wounded" { Loss::Wounded } else { Loss::TakenAway };
        let _ = held.grant.lose(why);
        // The other locks of several are still ours to give back.
        if held.grant.locks.as_slice().len() == 1 {
            self.held.remove(&number);
        }
        self.tell(KeeperEvent::GrantLost {
            lock: SmolStr::new(&lost.lock),
            token: lost.token,
            why: SmolStr::new(&lost.why),
        });
    }
}

/// Tells whoever waits for it, if somebody does.
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
