//! What an engine hands out: a holder let in. Engine-neutral; guards and leases are views of it.

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

/// A grant, as the client knows it.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The engine's own number for it.
    pub(crate) number: u64,
    pub(crate) locks: Locks,
    pub(crate) mode: Mode,
    /// `None` with an engine that cannot fence.
    pub(crate) token: Option<Token>,
    /// Made when somebody asks for it.
    pub(crate) sequencer: OnceLock<String>,
    /// The cell's session, by which an office is handed over; `None` with other engines.
    pub(crate) session: Option<String>,
    /// Shared by all grants of the session.
    pub(crate) deadline: Arc<Deadline>,
    /// How long after the deadline it is in jeopardy before it is lost.
    pub(crate) grace: Duration,
    /// The caller asked to go on working in jeopardy.
    pub(crate) works_in_jeopardy: bool,
    /// Invariant: 0 while it is not lost by itself; set once, never cleared.
    pub(crate) lost: AtomicU8,
}

impl Grant {
    /// The first lock's name stands for the grant in texts.
    pub(crate) fn name(&self) -> &SmolStr {
        &self.locks.as_slice()[0]
    }

    /// The token with its lock and mode as one text; empty without a token, and for several locks.
    pub(crate) fn sequencer(&self) -> &str {
        self.sequencer.get_or_init(|| match (&self.locks, self.token) {
            (Locks::One(lock), Some(token)) => {
                Sequencer { lock: lock.clone(), token, mode: self.mode }.to_string()
            }
            _ => String::new(),
        })
    }

    /// Where it stands now. Once this has said `Lost`, it always will.
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
            // A renewal must not bring back what somebody has seen as lost.
            let _ = self.lose(Loss::GraceOver);
            Err(Loss::GraceOver)
        }
    }

    /// This grant alone is lost; false if it was before. Wakes those who look at it by way of the session's deadline.
    pub(crate) fn lose(&self, why: Loss) -> bool {
        let first = self.lost.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            self.deadline.touch();
        }
        first
    }

    /// Zero from the deadline on.
    pub(crate) fn remaining(&self) -> Duration {
        match self.state() {
            Ok(GuardState::Held) if mutation::is_on(Mutation::NoDeadline) => Duration::from_millis(100),
            Ok(GuardState::Held) => self.deadline.at().map_or(Duration::ZERO, |at| at.since(Moment::now())),
            _ => Duration::ZERO,
        }
    }

    /// Strict: from the deadline on it is an error, grace or not, and while the session is suspended.
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

    /// Why the work must stop, if it must: at the deadline, or after the grace if the caller asked for that. Not while its
    /// session is suspended: until the deadline nobody else can be let in.
    pub(crate) fn must_stop(&self) -> Option<Loss> {
        match self.state() {
            Ok(GuardState::Held) => None,
            Ok(_) if self.works_in_jeopardy || !self.deadline_has_passed() => None,
            Ok(_) => Some(Loss::Deadline),
            Err(why) => Some(why),
        }
    }

    /// Resolves when the work must stop.
    pub(crate) async fn stopped(&self) -> Loss {
        let mut changed = self.deadline.subscribe();
        loop {
            if let Some(why) = self.must_stop() {
                return why;
            }
            self.next_look(&mut changed, self.works_in_jeopardy).await;
        }
    }

    /// Resolves when the state is another than `last`.
    pub(crate) async fn changed_from(&self, last: GuardState) -> GuardState {
        let mut changed = self.deadline.subscribe();
        loop {
            let state = self.state().unwrap_or(GuardState::Lost);
            if state != last {
                return state;
            }
            self.next_look(&mut changed, state == GuardState::Jeopardy).await;
        }
    }

    /// Sleeps until something can have changed: a loss, a renewal in jeopardy, or the clock.
    async fn next_look(&self, changed: &mut tokio::sync::watch::Receiver<()>, past_grace: bool) {
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
