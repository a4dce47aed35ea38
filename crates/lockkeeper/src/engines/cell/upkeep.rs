//! Timer-driven work: renewals, expired waits, missing answers, idle sessions.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::connection::{Connection, LinkState};
use super::route::finish;
use super::session::{IDLE_MAX, Stage};
use super::transport::LinkError;
use super::work::{Entry, Work};
use crate::clock::Moment;
use crate::error::{Error, Loss};
use crate::events::Event as KeeperEvent;

/// The shortest time after which a link is dropped because of unanswered renewals.
pub(super) const RENEWAL_TIMEOUT_MIN: Duration = Duration::from_millis(500);

impl Connection {
    /// The next moment at which something is due.
    pub(super) fn next_due(&self) -> Moment {
        let mut due = self
            .give_up_at
            .min(self.renew_at)
            .min(self.retry_at)
            .min(self.idle_at)
            .min(self.leader_check_due());
        if let LinkState::Down { until } = self.link {
            due = due.min(until);
        }
        if let Some(closing) = &self.closing {
            due = due.min(closing.until);
        }
        for slot in &self.sessions.slots {
            if let (false, Some(session)) = (slot.in_jeopardy, slot.session()) {
                due = due.min(session.deadline.at().unwrap_or(Moment::NEVER));
            }
        }
        due
    }

    /// Does what is due.
    pub(super) fn upkeep(&mut self, now: Moment) {
        if now >= self.renew_at {
            self.renew(now);
        }
        self.report_jeopardy(now);
        if now >= self.give_up_at {
            self.give_up(now);
        }
        if now >= self.retry_at {
            self.retry_at = Moment::NEVER;
            self.submit_all(now);
        }
        if now >= self.idle_at {
            self.close_idle(now);
        }
        if now >= self.leader_check_due() {
            self.check_leader(now);
        }
        if matches!(self.link, LinkState::Down { until } if now >= until) {
            self.open_link();
        }
    }

    /// Renews all sessions with one operation.
    pub(super) fn renew(&mut self, now: Moment) {
        let Some(interval) = self.sessions.renewal_interval() else {
            self.renew_at = Moment::NEVER;
            return;
        };
        self.renew_at = now.plus(interval);
        if !self.is_up() {
            return;
        }
        match self.unanswered_since {
            Some(since) if now.since(since) >= interval.max(RENEWAL_TIMEOUT_MIN) => {
                self.drop_link(&LinkError::new("no answer to renewals"), now);
                return;
            }
            Some(_) => {}
            None => self.unanswered_since = Some(now),
        }
        let sessions = self.sessions.all().cloned().collect();
        let number = self.next_number();
        self.submit(
            number,
            Entry::new(number, Moment::NEVER, Work::KeepAlive { sessions, sent_at: now }),
            now,
        );
    }

    fn report_jeopardy(&mut self, now: Moment) {
        let mut reports = Vec::new();
        for slot in &mut self.sessions.slots {
            let Some(session) = slot.session() else { continue };
            if !slot.in_jeopardy && session.deadline.at().is_ok_and(|at| at <= now) {
                reports.push(KeeperEvent::Jeopardy { session: SmolStr::new(&session.id), ttl: session.ttl });
                slot.in_jeopardy = true;
            }
        }
        for report in reports {
            self.emit(report);
        }
    }

    /// Ends pending work whose deadline has passed.
    fn give_up(&mut self, now: Moment) {
        let is_up = self.is_up();
        let timeout = self.options.request_timeout;
        let mut next = Moment::NEVER;
        let mut due = Vec::new();
        for (&number, entry) in &mut self.work {
            if let (Work::Acquire(acquiring), true) = (&entry.work, entry.give_up <= now) {
                entry.give_up = acquiring.give_up(timeout, is_up && entry.sent);
            }
            if entry.give_up <= now {
                due.push(number);
            } else {
                next = next.min(entry.give_up);
            }
        }
        self.give_up_at = next;
        let mut is_silent = false;
        for number in due {
            if let Some(entry) = self.work.remove(&number) {
                is_silent |= entry.sent;
                self.time_out(number, entry, now);
            }
        }
        if is_silent {
            self.drop_link(&LinkError::new(smol_str::format_smolstr!("no answer within {timeout:?}")), now);
        }
    }

    /// Ends pending work whose deadline has passed: its caller gets an error, and what must still be done is retried later.
    fn time_out(&mut self, number: u64, mut entry: Entry, now: Moment) {
        let why = match (&self.link, &entry.refused) {
            (LinkState::Up(_), Some(why)) => why.to_string(),
            (LinkState::Up(link), None) => format!("{} did not answer in time", link.address),
            _ => format!("no connection to {}", self.transport.addresses()),
        };
        match entry.work {
            Work::Acquire(acquiring) => {
                // Cancel it in the cell, because it may have been granted meanwhile.
                self.cancel(number, &acquiring, now);
                let _ = acquiring
                    .reply
                    .send(Err(Error::unavailable(format!("{why}: nothing is held; try again"))));
            }
            Work::Release(ref mut releasing) => {
                if let Some(reply) = releasing.reply.take() {
                    let text = format!(
                        "{why}: the lock may still be held; the release is retried in the background"
                    );
                    let _ = reply.send(Err(Error::Unknown(text.into())));
                }
                entry.give_up = Moment::NEVER;
                self.work.insert(number, entry);
            }
            Work::Call { repeatable, reply, .. } => {
                let error = if repeatable || !(entry.sent || entry.resent) {
                    Error::unavailable(format!("{why}: try again"))
                } else {
                    Error::Unknown(
                        format!("{why}: the operation may have happened; check before you repeat it").into(),
                    )
                };
                let _ = reply.send(Err(error));
            }
            Work::Open { .. } | Work::Cancel { .. } | Work::CloseSession { .. } => {
                entry.give_up = Moment::NEVER;
                self.work.insert(number, entry);
            }
            Work::Attach { .. } | Work::KeepAlive { .. } => {}
        }
    }

    /// Requeues the operations of a lost link for the next one; those that are not repeatable end as `Unknown`.
    pub(super) fn requeue_in_flight(&mut self) {
        let timeout = self.options.request_timeout;
        let mut ended = Vec::new();
        for (&number, entry) in &mut self.work {
            let was_sent = std::mem::take(&mut entry.sent);
            entry.resent |= was_sent;
            entry.wire = number;
            match &entry.work {
                Work::Acquire(acquiring) => {
                    entry.give_up = acquiring.give_up(timeout, false);
                    self.give_up_at = self.give_up_at.min(entry.give_up);
                }
                Work::Attach { .. } | Work::KeepAlive { .. } => ended.push(number),
                work if was_sent && !work.is_repeatable() => ended.push(number),
                Work::Open { .. } | Work::Cancel { .. } | Work::CloseSession { .. } => {
                    entry.give_up = Moment::NEVER
                }
                Work::Release(_) | Work::Call { .. } => {}
            }
        }
        for number in ended {
            if let Some(entry) = self.work.remove(&number) {
                let text = "the connection was lost before the answer: the operation may have happened; check before you repeat it";
                finish(entry.work, Error::Unknown(text.into()));
            }
        }
    }

    /// Closes sessions that were idle for a while.
    fn close_idle(&mut self, now: Moment) {
        self.idle_at = if self.sessions.slots.is_empty() { Moment::NEVER } else { now.plus(IDLE_MAX / 4) };
        let mut idle = Vec::new();
        for slot in &mut self.sessions.slots {
            let Stage::Ready(session) = &slot.stage else { continue };
            let is_used = self.held.values().any(|held| Arc::ptr_eq(&held.session, session))
                || self.work.values().any(|entry| match &entry.work {
                    Work::Acquire(acquiring) => acquiring.request.ttl == slot.ttl,
                    work => work.session().is_some_and(|named| Arc::ptr_eq(named, session)),
                });
            match (is_used, slot.idle_since) {
                (true, _) => slot.idle_since = None,
                (false, None) => slot.idle_since = Some(now),
                (false, Some(since)) if now.since(since) >= IDLE_MAX => {
                    idle.push(Arc::clone(session));
                    slot.stage = Stage::None;
                }
                (false, Some(_)) => {}
            }
        }
        self.sessions.slots.retain(|slot| !matches!(slot.stage, Stage::None));
        for session in idle {
            self.close_session(session, Loss::Closed, now);
        }
    }
}
