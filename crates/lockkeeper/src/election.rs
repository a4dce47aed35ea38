//! Who leads: campaign, lead, resign, hand over, observe.

use std::future::Future;
use std::time::Duration;

pub use lockkeeper_api::election::Leader;
use lockkeeper_core::Token;
use lockkeeper_core::access::ELECTION_PREFIX;
use smol_str::{SmolStr, format_smolstr};

use crate::error::{Error, Loss};
use crate::guard::{Guard, GuardState};
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::run::{self, Lease};

/// An election by its name. Its leader is whoever holds the lock `election/NAME`, so there is one leader for the same
/// reasons as there is one holder, and the epoch is a fencing token.
///
/// ```no_run
/// # use lockkeeper::prelude::*;
/// # async fn example(keeper: Keeper) -> Result<(), lockkeeper::Error> {
/// let leadership = keeper.election("scheduler").value("10.0.0.3:8080").campaign().await?;
/// println!("leading in epoch {}", leadership.epoch());
/// leadership.lost().await; // the deadline comes before anybody else can lead
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until somebody campaigns or observes"]
pub struct Election {
    keeper: Keeper,
    name: SmolStr,
    lock: Lock,
}

impl Election {
    pub(crate) fn new(keeper: Keeper, name: SmolStr) -> Election {
        let lock = Lock::new(keeper.clone(), format_smolstr!("{ELECTION_PREFIX}{name}")).announce("");
        Election { keeper, name, lock }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What this candidate announces when it leads: its address, for instance. At most 4 KiB.
    pub fn value(mut self, value: impl Into<SmolStr>) -> Self {
        self.lock = self.lock.announce(value);
        self
    }

    /// How long a leader that is gone stays the leader; see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Wait at most this long for the office; zero means not at all. Default: as long as it takes.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.lock = self.lock.wait(limit);
        self
    }

    /// Stands for election, and waits until it leads. Candidates lead in the order in which they came.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call stands no longer, and gives back an office that it got meanwhile.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let guard = self.lock.acquire().await?;
        Ok(Leadership { guard, keeper: self.keeper.clone(), election: self.name.clone() })
    }

    /// Stands for election, does the work while it leads, and resigns. The work is dropped before another can lead.
    ///
    /// # Errors
    ///
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    ///
    /// A dropped call drops the work and resigns in the background.
    pub async fn run<W, T>(&self, work: impl FnOnce(Lease) -> W) -> Result<T, Error>
    where
        W: Future<Output = T>,
    {
        run::run(self.lock.acquire().await?, work).await
    }

    /// Who leads now; `None` if nobody does.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.keeper.shared.engine.leader(&self.name, None).await
    }

    /// Who leads, now and at every change from now on, vacancies included.
    pub fn observe(&self) -> Observer {
        Observer { keeper: self.keeper.clone(), election: self.name.clone(), known: None }
    }
}

/// The lock of an election.
pub(crate) fn lock_of(election: &str) -> String {
    format!("{ELECTION_PREFIX}{election}")
}

/// An office that is held. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "the office is given up as soon as this is dropped"]
pub struct Leadership {
    guard: Guard,
    keeper: Keeper,
    election: SmolStr,
}

impl Leadership {
    /// The fencing token of this office: hand it to every resource with every write.
    pub fn epoch(&self) -> Token {
        self.guard.token()
    }

    /// Whether it surely still leads, to be asked before each step that matters.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.guard.check()
    }

    /// Where it stands, by the clock alone.
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// How long it surely leads without another renewal.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Resolves when it must stop acting as the leader; that is before another can lead.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only looks.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// The guard of the election's lock, for [`ValueHandle::fence`](crate::ValueHandle::fence) and the like.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Gives the office up, and waits until that is certain. The next candidate leads.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// A dropped call resigns in the background.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }

    /// Passes the office on to one candidate, named by its value or else its owner, whoever is first in line.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no such candidate: then this one still leads, and gets its office back in the
    /// second field. [`Error::NotHeld`] if it no longer led.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have handed over; otherwise it resigns in the background.
    pub async fn hand_over(self, to: &str) -> Result<(), (Error, Leadership)> {
        let (session, epoch) = match self.session() {
            Ok(known) => known,
            Err(error) => return Err((error, self)),
        };
        match self.keeper.shared.engine.hand_over(&self.election, &session, epoch, to).await {
            // Dropping the guard gives back what is no longer ours, which does nothing.
            Ok(()) => Ok(()),
            Err(error) => Err((error, self)),
        }
    }

    fn session(&self) -> Result<(String, Token), Error> {
        let session = self.guard.grant().session.clone();
        let session = session.ok_or_else(|| {
            Error::unsupported(format!(
                "the engine {} cannot hand over: resign instead",
                self.keeper.engine()
            ))
        })?;
        Ok((session, self.epoch()))
    }
}

/// Sees who leads: see [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    keeper: Keeper,
    election: SmolStr,
    known: Option<u64>,
}

impl Observer {
    /// The leader, at once the present one and then at each change; `None` when nobody leads. What lasted for less time
    /// than it takes to ask may be skipped, but never the last state.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if nobody could be asked for the request timeout. Call it again to go on.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a change that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let seen = self.keeper.shared.engine.leader(&self.election, self.known).await?;
            let epoch = seen.as_ref().map_or(0, |leader| leader.epoch);
            if self.known.replace(epoch) != Some(epoch) {
                return Ok(seen);
            }
        }
    }
}
