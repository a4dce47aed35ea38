//! Carries out the effects of an applied entry: replies to callers, grants to waiters, events to streams, and session
//! timers.

pub mod callers;
pub mod observers;
pub(crate) mod undelivered;

use std::sync::MutexGuard;
use std::time::Duration;

use lockkeeper_core::command::NODE_REQUEST_PREFIX;
use lockkeeper_core::{Answer, Applied, Batch, CellTime, Command, Effect, Freed, LockTable, Refusal, Reply};
use smol_str::SmolStr;

use crate::effects::callers::{Caller, DeliveryOutcome};
use crate::failure::Failure;
use crate::raft::TableHost;
use crate::raft::types::Proposal;
use crate::shared::Shared;

impl TableHost for Shared {
    fn table(&self) -> MutexGuard<'_, LockTable> {
        Shared::table(self)
    }

    fn leads(&self) -> bool {
        self.leader_term.term().is_some()
    }

    fn withhold_answers(&self) {
        self.callers.fail_all(&Failure::unknown("the lock tables of the cell differ"));
    }

    fn snapshot_written(&self, took: Duration) {
        self.metrics.snapshots.inc();
        self.metrics.snapshot_seconds.observe(took.as_secs_f64());
    }

    /// Runs inside apply, so that a caller is registered under its ticket before a later entry can grant it.
    fn dispatch(&self, proposal: &Proposal, applied: Applied, wake_before: Option<CellTime>) {
        let batch: &Batch = &proposal.batch;
        let sequence = (proposal.proposer == self.proposer_id).then_some(proposal.sequence);
        let callers = sequence.and_then(|sequence| self.callers.take(sequence)).unwrap_or_default();
        let mut callers = callers.into_iter();
        for (command, answer) in batch.commands.iter().zip(applied.answers) {
            self.note(batch.now, command, &answer);
            let mut caller = callers.next().unwrap_or(Caller::Nobody);
            if let (Some((connection, session)), Ok(Reply::SessionOpened { .. })) = (caller.opens(), &answer)
                && !connection.is_closed()
            {
                self.callers.attach(session, connection);
                connection.add_session(session);
            }
            if let (Caller::Traced(traced), Command::Acquire(request), Ok(Reply::Queued { .. })) =
                (&mut caller, command, &answer)
            {
                traced.record_wait(&self.table(), batch.now, request);
            }
            let undelivered = match (command, &answer) {
                (Command::Acquire(request), Ok(Reply::Granted(grant))) if request.request.is_none() => {
                    Some((request.session, grant.clone()))
                }
                _ => None,
            };
            if !self.callers.answer(caller, answer)
                && let Some((session, grant)) = undelivered
            {
                self.give_back(session, &grant, false);
            }
        }
        for effect in applied.effects {
            self.carry_out(batch.now, effect);
        }
        let wake = self.table().next_entry_due();
        // Only an earlier deadline needs a wake-up; a later one is noticed when the old one fires.
        if wake.is_some_and(|wake| wake <= batch.now || wake_before.is_none_or(|before| wake < before)) {
            self.timers_changed.notify_one();
        }
    }
}

impl Shared {
    fn note(&self, now: CellTime, command: &Command, answer: &Answer) {
        match (command, answer) {
            (command, Ok(Reply::SessionOpened { ttl_ms, .. })) if self.leader_term.term().is_some() => {
                if let Some(session) = command.opens() {
                    self.expiry.start(session, *ttl_ms);
                    self.timers_changed.notify_one();
                }
            }
            (Command::Tick, _) => self.tick_finished(),
            (Command::Release { .. }, Err(_)) => self.note_ended_release(command),
            (Command::Acquire(_), Ok(Reply::Granted(grant))) => {
                self.metrics.granted_at_once(grant.mode);
                self.hourly_stats.granted(now, 0);
                self.observers.changed(grant.locks.as_slice());
            }
            (Command::Acquire(request), Err(why)) => self.metrics.refused_at_once(request.mode, why),
            (Command::TakeRate(_), Ok(Reply::Rate { allowed: false, .. })) => {
                self.metrics.rate_exhausted();
            }
            (Command::PutValue { .. } | Command::DeleteValue { .. }, Err(Refusal::StaleToken { .. })) => {
                self.metrics.stale_write_refused();
            }
            _ => {}
        }
    }

    fn carry_out(&self, now: CellTime, effect: Effect) {
        match effect {
            Effect::Granted { session, ticket, request, grant, waited_ms } => {
                self.metrics.granted_after(grant.mode, waited_ms);
                self.hourly_stats.granted(now, waited_ms);
                if self.slow_acquire_log.is_slow(waited_ms) && self.leader_term.term().is_some() {
                    self.metrics.slow_acquires.inc();
                    let owner = self.table().session(session).map(|alive| alive.owner.clone());
                    self.slow_acquire_log.log(now, session, &owner.unwrap_or_default(), &grant, waited_ms);
                }
                self.observers.changed(grant.locks.as_slice());
                let given = grant.clone();
                match self.callers.end_wait(ticket, Ok(Reply::Granted(grant))) {
                    DeliveryOutcome::Refused => {
                        let of_client = |id: &SmolStr| !id.starts_with(NODE_REQUEST_PREFIX);
                        self.give_back(session, &given, request.as_ref().is_some_and(of_client));
                    }
                    DeliveryOutcome::Gone if request.is_none() => self.give_back(session, &given, false),
                    DeliveryOutcome::Gone | DeliveryOutcome::Delivered => {}
                }
            }
            Effect::Ended { ticket, refusal, mode, waited_ms, .. } => {
                self.metrics.refused_after(mode, &refusal, waited_ms);
                self.callers.end_wait(ticket, Err(Failure::Refused(refusal)));
            }
            Effect::Freed { session, lock, token, why, held_ms } => {
                self.metrics.freed(why, held_ms);
                if !self.given_back.is_empty() {
                    self.given_back.freed(&self.table(), session, token);
                }
                let lost = matches!(why, Freed::Forced | Freed::SessionExpired | Freed::Wounded);
                self.hourly_stats.freed(now, held_ms, lost);
                self.observers.changed(std::slice::from_ref(&lock));
                // The client knows of the others: it caused them, or is told that its session ended.
                if matches!(why, Freed::Forced | Freed::Wounded)
                    && let Some(connection) = self.callers.attached(session)
                {
                    connection.grant_lost(session, &lock, token, why);
                }
            }
            Effect::SessionEnded { session, why } => {
                self.expiry.forget(session);
                self.metrics.session_ended(why);
                if let Some(connection) = self.callers.detach(session) {
                    connection.session_ended(session, why);
                }
            }
            Effect::ExpiryStale { session } => {
                let ttl_ms = self.table().session(session).map(|alive| alive.ttl_ms);
                if let (Some(ttl_ms), Some(_)) = (ttl_ms, self.leader_term.term()) {
                    self.expiry.start(session, ttl_ms);
                    self.timers_changed.notify_one();
                }
            }
        }
    }
}
