//! Accepts requests from callers and sends their operations.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1::operation::Kind as OperationKind;
use lockkeeper_core::mutation::{self, Mutation};
use tokio::sync::oneshot;

use super::connection::{Closing, Connection};
use super::session::{Session, Stage};
use super::work::{Acquiring, Entry, Releasing, Request, Work};
use crate::clock::Moment;
use crate::error::{Error, Loss};

impl Connection {
    /// Accepts a caller's request.
    pub(super) fn accept(&mut self, request: Request, now: Moment) {
        let is_closing = self.closing.is_some();
        match request {
            Request::Close { reply } => self.close(Some(reply), now),
            Request::Acquire { reply, .. } if is_closing => drop(reply.send(Err(Error::Closed))),
            Request::Call { reply, .. } if is_closing => drop(reply.send(Err(Error::Closed))),
            Request::Acquire { number, request, requested_at, reply } => {
                // The caller is gone, and its background release may have overtaken this: nothing was sent.
                if reply.is_closed() {
                    return;
                }
                let acquiring = Acquiring { request, requested_at, session: None, reply };
                let give_up = acquiring.give_up(self.options.request_timeout, false);
                self.submit(number, Entry::new(number, give_up, Work::Acquire(acquiring)), now);
            }
            Request::Release { number, reply } => match self.held.remove(&number) {
                Some(held) => {
                    let number = self.next_number();
                    let give_up = now.plus(self.options.request_timeout);
                    let work = Work::Release(Releasing { held, reply: Some(reply) });
                    self.submit(number, Entry::new(number, give_up, work), now);
                }
                None => drop(reply.send(Err(Error::NotHeld { lock: Default::default() }))),
            },
            Request::Call { number, operation, repeatable, reply } => {
                let give_up = now.plus(self.options.request_timeout);
                self.submit(
                    number,
                    Entry::new(number, give_up, Work::Call { operation, repeatable, reply }),
                    now,
                );
            }
            Request::SessionIds { reply } => {
                let _ = reply.send(self.sessions.all().map(|session| session.id.clone()).collect());
            }
        }
    }

    /// Handles a dropped acquire or guard: cancels the acquire, or releases its grant.
    pub(super) fn release_in_background(&mut self, number: u64, now: Moment) {
        if let Some(held) = self.held.remove(&number) {
            let number = self.next_number();
            let work = Work::Release(Releasing { held, reply: None });
            self.submit(number, Entry::new(number, Moment::NEVER, work), now);
            return;
        }
        let Some(Entry { work: Work::Acquire(acquiring), .. }) = self.work.remove(&number) else { return };
        self.cancel(number, &acquiring, now);
    }

    /// Leaves the queue, or releases what was granted meanwhile; nothing if the acquire was never sent.
    pub(super) fn cancel(&mut self, number: u64, acquiring: &Acquiring, now: Moment) {
        let Some(session) = acquiring.session.clone() else { return };
        if mutation::is_on(Mutation::ForgetCancel) {
            return;
        }
        let request = acquiring.request_id(number);
        let number = self.next_number();
        self.submit(number, Entry::new(number, Moment::NEVER, Work::Cancel { session, request }), now);
    }

    /// Adds pending work, and sends its operation if possible.
    pub(super) fn submit(&mut self, number: u64, mut entry: Entry, now: Moment) {
        entry.not_before = entry.not_before.filter(|until| now < *until);
        if let Some(until) = entry.not_before {
            self.retry_at = self.retry_at.min(until);
        }
        if !entry.sent
            && entry.not_before.is_none()
            && self.is_up()
            && let Some(operation) = self.operation(number, &mut entry.work, now)
        {
            entry.sent = true;
            if !matches!(entry.work, Work::KeepAlive { .. }) {
                self.leader_check.on_sent(now, self.work.is_empty());
            }
            // Work without a caller must not remain unanswered forever either.
            if entry.give_up == Moment::NEVER && !matches!(entry.work, Work::Acquire(_)) {
                entry.give_up = now.plus(self.options.request_timeout);
            }
            self.push(entry.wire, operation);
        }
        self.give_up_at = self.give_up_at.min(entry.give_up);
        self.work.insert(number, entry);
    }

    /// Sends all unsent work that can be sent, in the order of the requests.
    pub(super) fn submit_all(&mut self, now: Moment) {
        if !self.is_up() {
            return;
        }
        let mut numbers: Vec<u64> =
            self.work.iter().filter(|(_, entry)| !entry.sent).map(|(&number, _)| number).collect();
        numbers.sort_unstable();
        for number in numbers {
            if let Some(entry) = self.work.remove(&number) {
                self.submit(number, entry, now);
            }
        }
    }

    /// The operation for pending work; `None` while its session is not attached to this link.
    fn operation(&mut self, number: u64, work: &mut Work, now: Moment) -> Option<OperationKind> {
        match work {
            Work::Acquire(acquiring) => {
                let ttl = acquiring.request.ttl;
                let slot = self.sessions.slot(ttl);
                slot.idle_since = None;
                match &slot.stage {
                    Stage::Ready(session) => {
                        let operation = acquiring.operation(number, session, now);
                        acquiring.session = Some(Arc::clone(session));
                        Some(operation)
                    }
                    Stage::None => {
                        slot.stage = Stage::Opening;
                        self.open_session(ttl, now);
                        None
                    }
                    Stage::Opening | Stage::Detached(_) => None,
                }
            }
            Work::Release(Releasing { held, .. }) if !self.sessions.is_ready(&held.session) => None,
            Work::Cancel { session, .. } if !self.sessions.is_ready(session) => None,
            work => Some(work.operation(&self.options.owner, now)),
        }
    }

    fn open_session(&mut self, ttl: Duration, now: Moment) {
        let number = self.next_number();
        self.submit(number, Entry::new(number, Moment::NEVER, Work::Open { ttl, sent_at: now }), now);
    }

    pub(super) fn close_session(&mut self, session: Arc<Session>, why: Loss, now: Moment) {
        // The holders learn of it before the cell does, hence before another client can acquire their locks.
        session.deadline.lose(why);
        let number = self.next_number();
        self.submit(number, Entry::new(number, Moment::NEVER, Work::CloseSession { session }), now);
    }

    /// Closes the keeper. Closing the sessions releases what they hold, so nothing else has to be sent.
    pub(super) fn close(&mut self, reply: Option<oneshot::Sender<()>>, now: Moment) {
        if self.closing.is_none() {
            self.closing =
                Some(Closing { until: now.plus(self.options.request_timeout), replies: Vec::new() });
            for (number, entry) in std::mem::take(&mut self.work) {
                match entry.work {
                    Work::Acquire(acquiring) => drop(acquiring.reply.send(Err(Error::Closed))),
                    Work::Call { reply, .. } => drop(reply.send(Err(Error::Closed))),
                    // In flight, and answered before the close of its session. A session that is being opened has to be
                    // closed too.
                    Work::Release(_) | Work::Open { .. } if entry.sent => {
                        drop(self.work.insert(number, entry))
                    }
                    Work::Release(_) | Work::Open { .. } | Work::Cancel { .. } => {}
                    Work::CloseSession { .. } => drop(self.work.insert(number, entry)),
                    Work::Attach { .. } | Work::KeepAlive { .. } => {}
                }
            }
            self.held.clear();
            let sessions: Vec<_> = self.sessions.all().cloned().collect();
            self.sessions.slots.clear();
            for session in sessions {
                self.close_session(session, Loss::Closed, now);
            }
        }
        if let (Some(closing), Some(reply)) = (&mut self.closing, reply) {
            closing.replies.push(reply);
        }
    }
}
