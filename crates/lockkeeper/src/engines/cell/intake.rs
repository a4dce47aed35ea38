//! What callers want, and how it gets onto the link.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1::operation::Kind as Asked;
use lockkeeper_core::mutation::{self, Mutation};
use tokio::sync::oneshot;

use super::connection::{Closing, Connection};
use super::session::{Session, Stage};
use super::work::{Acquiring, Entry, Releasing, Request, Work};
use crate::clock::Moment;
use crate::error::{Error, Loss};

impl Connection {
    /// Takes a caller's request in hand.
    pub(super) fn take(&mut self, request: Request, now: Moment) {
        let is_closing = self.closing.is_some();
        match request {
            Request::Close { reply } => self.close(Some(reply), now),
            Request::Acquire { reply, .. } if is_closing => drop(reply.send(Err(Error::Closed))),
            Request::Call { reply, .. } if is_closing => drop(reply.send(Err(Error::Closed))),
            Request::Acquire { number, ask, asked_at, reply } => {
                // The caller has gone already, and its give-back may have come before this: nothing was sent.
                if reply.is_closed() {
                    return;
                }
                let acquiring = Acquiring { ask, asked_at, session: None, reply };
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
            Request::Call { number, asked, repeatable, reply } => {
                let give_up = now.plus(self.options.request_timeout);
                self.submit(
                    number,
                    Entry::new(number, give_up, Work::Call { asked, repeatable, reply }),
                    now,
                );
            }
            Request::SessionIds { reply } => {
                let _ = reply.send(self.sessions.all().map(|session| session.id.clone()).collect());
            }
        }
    }

    /// The caller of an acquire, or the guard that it got, has gone.
    pub(super) fn give_back(&mut self, number: u64, now: Moment) {
        if let Some(held) = self.held.remove(&number) {
            let number = self.next_number();
            let work = Work::Release(Releasing { held, reply: None });
            self.submit(number, Entry::new(number, Moment::NEVER, work), now);
            return;
        }
        let Some(Entry { work: Work::Acquire(acquiring), .. }) = self.work.remove(&number) else { return };
        self.cancel(number, &acquiring, now);
    }

    /// Leaves the queue, or gives back what was granted meanwhile; nothing if it was never sent.
    pub(super) fn cancel(&mut self, number: u64, acquiring: &Acquiring, now: Moment) {
        let Some(session) = acquiring.session.clone() else { return };
        if mutation::is_on(Mutation::ForgetCancel) {
            return;
        }
        let request = acquiring.request_id(number);
        let number = self.next_number();
        self.submit(number, Entry::new(number, Moment::NEVER, Work::Cancel { session, request }), now);
    }

    /// Keeps the work in hand, and puts it on the link if that can be.
    pub(super) fn submit(&mut self, number: u64, mut entry: Entry, now: Moment) {
        entry.not_before = entry.not_before.filter(|until| now < *until);
        if let Some(until) = entry.not_before {
            self.retry_at = self.retry_at.min(until);
        }
        if !entry.sent
            && entry.not_before.is_none()
            && self.is_up()
            && let Some(asked) = self.asked(number, &mut entry.work, now)
        {
            entry.sent = true;
            if !matches!(entry.work, Work::KeepAlive { .. }) {
                self.doubt.expect(now, self.work.is_empty());
            }
            // What nobody waits for must not stay without an answer for ever either.
            if entry.give_up == Moment::NEVER && !matches!(entry.work, Work::Acquire(_)) {
                entry.give_up = now.plus(self.options.request_timeout);
            }
            self.push(entry.wire, asked);
        }
        self.give_up_at = self.give_up_at.min(entry.give_up);
        self.work.insert(number, entry);
    }

    /// Puts all on the link that is not there yet and can be, in the order in which it was asked for.
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

    /// The operation for some work; `None` while this link does not speak for its session.
    fn asked(&mut self, number: u64, work: &mut Work, now: Moment) -> Option<Asked> {
        match work {
            Work::Acquire(acquiring) => {
                let ttl = acquiring.ask.ttl;
                let slot = self.sessions.slot(ttl);
                slot.idle_since = None;
                match &slot.stage {
                    Stage::Ready(session) => {
                        let asked = acquiring.asked(number, session, now);
                        acquiring.session = Some(Arc::clone(session));
                        Some(asked)
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
            work => Some(work.asked(&self.options.owner, now)),
        }
    }

    fn open_session(&mut self, ttl: Duration, now: Moment) {
        let number = self.next_number();
        self.submit(number, Entry::new(number, Moment::NEVER, Work::Open { ttl, sent_at: now }), now);
    }

    pub(super) fn close_session(&mut self, session: Arc<Session>, why: Loss, now: Moment) {
        // The holders learn of it before the cell does, and so before anyone else can hold what they held.
        session.deadline.lose(why);
        let number = self.next_number();
        self.submit(number, Entry::new(number, Moment::NEVER, Work::CloseSession { session }), now);
    }

    /// Ends everything. The sessions' end frees what they hold, so nothing else has to be sent.
    pub(super) fn close(&mut self, reply: Option<oneshot::Sender<()>>, now: Moment) {
        if self.closing.is_none() {
            self.closing =
                Some(Closing { until: now.plus(self.options.request_timeout), replies: Vec::new() });
            for (number, entry) in std::mem::take(&mut self.work) {
                match entry.work {
                    Work::Acquire(acquiring) => drop(acquiring.reply.send(Err(Error::Closed))),
                    Work::Call { reply, .. } => drop(reply.send(Err(Error::Closed))),
                    // On its way, and answered before the end of its session. The same for a session that is being
                    // opened: it has to be closed as well.
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
