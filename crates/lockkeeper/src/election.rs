//! Leader election: campaign, lead, resign, hand over, observe.

use std::future::Future;
use std::time::Duration;

pub use lockkeeper_api::election::Leader;
use lockkeeper_core::Token;
use lockkeeper_core::access::ELECTION_PREFIX;
use smol_str::SmolStr;

use crate::error::{Error, Loss};
use crate::guard::{Guard, GuardState};
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::run::{self, Lease};

/// Handle to a named election.
///
/// Its leader is the holder of the lock `election/NAME`, so leadership has the guarantees of a lock, and the epoch is a
/// fencing token.
///
/// ```no_run
/// # use lockkeeper::prelude::*;
/// # async fn example(keeper: Keeper) -> Result<(), lockkeeper::Error> {
/// let leadership = keeper.election("scheduler").value("10.0.0.3:8080").campaign().await?;
/// println!("leading in epoch {}", leadership.epoch());
/// leadership.lost().await; // resolves before another candidate can lead
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until a candidate campaigns or a client observes"]
pub struct Election {
    keeper: Keeper,
    name: SmolStr,
    lock: Lock,
}

impl Election {
    pub(crate) fn new(keeper: Keeper, name: SmolStr) -> Election {
        let lock = Lock::new(keeper.clone(), Election::lock_of(&name).into()).announce("");
        Election { keeper, name, lock }
    }

    /// Returns the name of the lock whose holder leads an election, for calls that name a lock, such as
    /// [`Keeper::force_release`].
    pub fn lock_of(election: &str) -> String {
        format!("{ELECTION_PREFIX}{election}")
    }

    /// Returns the name of the election.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the value that this candidate announces as the leader, such as its address. At most 4 KiB.
    pub fn value(mut self, value: impl Into<SmolStr>) -> Self {
        self.lock = self.lock.announce(value);
        self
    }

    /// Sets the time to live: how long a leader that is gone remains the leader; see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Waits at most this long for leadership; zero means not at all. Default: no limit.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.lock = self.lock.wait(limit);
        self
    }

    /// Campaigns and waits until this candidate leads. Candidates lead in the order of their campaigns.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call withdraws the candidate and resigns a leadership that it is granted meanwhile.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let guard = self.lock.acquire().await?;
        Ok(Leadership { guard, keeper: self.keeper.clone(), election: self.name.clone() })
    }

    /// Campaigns, runs the work while this candidate leads, and resigns. The work is dropped before another can lead.
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

    /// Returns the current leader; `None` if there is none.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.keeper.shared.engine.leader(&self.name, None).await
    }

    /// Observes the leader: the current one, then every change, vacancies included.
    pub fn observe(&self) -> Observer {
        Observer { keeper: self.keeper.clone(), election: self.name.clone(), known: None }
    }
}

/// Leadership of an election. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "the leadership is resigned as soon as this is dropped"]
pub struct Leadership {
    guard: Guard,
    keeper: Keeper,
    election: SmolStr,
}

impl Leadership {
    /// Returns the epoch: the fencing token of this leadership. Pass it to every resource with every write.
    pub fn epoch(&self) -> Token {
        self.guard.token()
    }

    /// Checks that this candidate certainly still leads. Call it before each step that matters.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.guard.check()
    }

    /// Returns the current state, decided by the local clock alone.
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// Returns how long this candidate certainly leads without another renewal.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Waits until this candidate must stop acting as the leader, which is before another can lead.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only observes.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// Returns the guard of the election's lock, for example for [`ValueHandle::fence`](crate::ValueHandle::fence).
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Resigns and waits for the confirmation. The next candidate leads.
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

    /// Transfers leadership to the candidate with this value or owner, regardless of the queue.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no such candidate: then this one still leads, and the error returns its leadership in
    /// the second field. [`Error::NotHeld`] if it no longer led.
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
            // Dropping the guard then releases a lock that is no longer ours, which has no effect.
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

/// Stream of the leaders of an election, from [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    keeper: Keeper,
    election: SmolStr,
    known: Option<u64>,
}

impl Observer {
    /// Returns the current leader on the first call, then waits for each change; `None` while there is no leader.
    ///
    /// Short-lived leaders may be skipped, but never the latest state.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server answered within the request timeout. Call it again to continue.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the next call returns a change that this one did not.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let leader = self.keeper.shared.engine.leader(&self.election, self.known).await?;
            let epoch = leader.as_ref().map_or(0, |leader| leader.epoch);
            if self.known.replace(epoch) != Some(epoch) {
                return Ok(leader);
            }
        }
    }
}
