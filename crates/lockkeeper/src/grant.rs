//! A grant as the client tracks it, for every engine. Guards and leases are views of it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{Locks, Sequencer, Token};
use smol_str::SmolStr;

use crate::clock::{Moment, sleep_towards};
use crate::deadline::Deadline;
use crate::error::{Error, Loss};
use crate::guard::GuardState;
use crate::mode::Mode;

/// A grant, as the client tracks it.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The engine's number of the grant.
    pub(crate) number: u64,
    pub(crate) locks: Locks,
    pub(crate) mode: Mode,
    /// `None` with an engine that cannot fence.
    pub(crate) token: Option<Token>,
    /// Computed on first use.
    pub(crate) sequencer: OnceLock<String>,
    /// The cell's session, needed to hand leadership over; `None` unless the grant belongs to an election of a cell.
    pub(crate) session: Option<String>,
    /// Shared by all grants of the session.
    pub(crate) deadline: Arc<Deadline>,
    /// How long the grant stays in jeopardy after the deadline before it is lost.
    pub(crate) grace: Duration,
    /// Whether the work continues in jeopardy.
    pub(crate) works_in_jeopardy: bool,
    /// The reason why this grant was lost, or 0.
    /// Invariant: set once, never cleared; stays 0 if only the session was lost.
    pub(crate) lost: AtomicU8,
}

impl Grant {
    /// The name of the first lock, which identifies the grant in messages.
    pub(crate) fn name(&self) -> &SmolStr {
        &self.locks.as_slice()[0]
    }

    /// Lock, mode and token as one string; empty without a token and for several locks.
    pub(crate) fn sequencer(&self) -> &str {
        self.sequencer.get_or_init(|| match (&self.locks, self.token) {
            (Locks::One(lock), Some(token)) => {
                Sequencer { lock: lock.clone(), token, mode: self.mode }.to_string()
            }
            _ => String::new(),
        })
    }

    /// The current state, or the reason for the loss. A loss is final.
    pub(crate) fn state(&self) -> Result<GuardState, Loss> {
        match self.lost.load(Ordering::Acquire) {
            0 => {}
            why => return Err(Loss::from_u8(why)),
        }
        let deadline = self.deadline.at()?;
        let now = Moment::now();
        if now < deadline && self.deadline.is_suspended() {
            Ok(GuardState::Jeopardy)
        } else if now < deadline || mutation::is_on(Mutation::NoDeadline) {
            Ok(GuardState::Held)
        } else if now < deadline.plus(self.grace) {
            Ok(GuardState::Jeopardy)
        } else {
            // A later renewal must not revive a grant that was reported as lost.
            let _ = self.lose(Loss::GraceOver);
            Err(Loss::GraceOver)
        }
    }

    /// Marks this grant as lost and wakes its observers through the session's deadline. Returns false if it was lost before.
    pub(crate) fn lose(&self, why: Loss) -> bool {
        let first = self.lost.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            self.deadline.notify();
        }
        first
    }

    /// The time until the deadline; zero from the deadline on.
    pub(crate) fn remaining(&self) -> Duration {
        match self.state() {
            Ok(GuardState::Held) if mutation::is_on(Mutation::NoDeadline) => Duration::from_millis(100),
            Ok(GuardState::Held) => self.deadline.at().map_or(Duration::ZERO, |at| at.since(Moment::now())),
            _ => Duration::ZERO,
        }
    }

    /// Fails from the deadline on, regardless of the grace, and while the session is suspended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.state() {
            Ok(GuardState::Held) => Ok(()),
            Ok(_) if !self.deadline_has_passed() => Err(self.lost_error(Loss::Suspended)),
            Ok(_) => Err(self.lost_error(Loss::Deadline)),
            Err(why) => Err(self.lost_error(why)),
        }
    }

    fn deadline_has_passed(&self) -> bool {
        self.deadline.at().is_ok_and(|at| at <= Moment::now())
    }

    /// The reason to stop the work, if there is one: at the deadline, or after the grace if the caller chose one. A suspended
    /// session is no reason: until the deadline no other client is granted the lock.
    pub(crate) fn must_stop(&self) -> Option<Loss> {
        match self.state() {
            Ok(GuardState::Held) => None,
            Ok(_) if self.works_in_jeopardy || !self.deadline_has_passed() => None,
            Ok(_) => Some(Loss::Deadline),
            Err(why) => Some(why),
        }
    }

    /// Resolves when the work must stop.
    pub(crate) async fn until_must_stop(&self) -> Loss {
        let mut changed = self.deadline.subscribe();
        loop {
            if let Some(why) = self.must_stop() {
                return why;
            }
            self.next_change(&mut changed, self.works_in_jeopardy).await;
        }
    }

    /// Resolves when the state differs from `last`.
    pub(crate) async fn changed_from(&self, last: GuardState) -> GuardState {
        let mut changed = self.deadline.subscribe();
        loop {
            let state = self.state().unwrap_or(GuardState::Lost);
            if state != last {
                return state;
            }
            self.next_change(&mut changed, state == GuardState::Jeopardy).await;
        }
    }

    /// Sleeps until the state may have changed: by a loss, a renewal in jeopardy, or the clock.
    async fn next_change(&self, changed: &mut tokio::sync::watch::Receiver<()>, past_grace: bool) {
        let Ok(deadline) = self.deadline.at() else { return };
        let moment = if past_grace { deadline.plus(self.grace) } else { deadline };
        tokio::select! {
            biased;
            _ = changed.changed() => {}
            () = sleep_towards(moment) => {}
        }
    }

    pub(crate) fn lost_error(&self, why: Loss) -> Error {
        Error::Lost { lock: self.name().clone(), why }
    }
}
