//! Elections: the leader is whoever holds the lock `election/NAME`, its epoch is the token, and what it announces is the value
//! that it campaigned with. So there is one leader for the same reasons as there is one holder.

use std::time::Duration;

use futures_util::Stream;
use lockkeeper_api::v1;
use lockkeeper_core::{Acquire, Command, LockName, Locks, SessionId, Token};
use smol_str::{SmolStr, format_smolstr};

use crate::calls::Calls;
use crate::failure::Failure;
use crate::undelivered::UndeliveredGrant;

/// Elections are locks whose names begin like this.
pub const PREFIX: &str = "election/";
/// How often an observer looks whether this node still leads the cell.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The lock of an election.
pub fn lock_of(election: &str) -> Result<LockName, Failure> {
    lockkeeper_core::limits::check_name("name of the election", election)?;
    let lock = format_smolstr!("{PREFIX}{election}");
    lockkeeper_core::limits::check_name("name of the election", &lock)?;
    Ok(lock)
}

impl Calls {
    /// Stands for election and waits to be elected, as an acquire waits for its lock. The epoch is the grant's token.
    pub(crate) async fn campaign(
        &self,
        election: &str,
        value: SmolStr,
        candidate: Acquire,
    ) -> Result<UndeliveredGrant, Failure> {
        let locks = Locks::One(lock_of(election)?);
        self.acquire_for_answer(Acquire { locks, value: Some(value), ..candidate }).await
    }

    /// Gives the office up; the next candidate leads.
    pub async fn resign(&self, session: SessionId, election: &str, epoch: Token) -> Result<(), Failure> {
        let lock = lock_of(election)?;
        self.command(Command::Release { session, lock, token: epoch, forget: false }).await.map(|_| ())
    }

    /// Passes the office on to one candidate.
    pub async fn hand_over(&self, request: v1::HandOverRequest) -> Result<(), Failure> {
        self.command(crate::wire::hand_over_command(request)?).await.map(|_| ())
    }

    /// Who leads.
    pub fn election(&self, election: &str) -> Result<v1::Election, Failure> {
        let view = self.lock(&lock_of(election)?)?;
        let leader = view.holders.into_iter().next().map(|holder| v1::Leader {
            value: holder.value.to_string(),
            epoch: holder.token.0,
            owner: holder.owner.to_string(),
        });
        Ok(v1::Election { leader, candidates: view.waiting })
    }

    /// Who leads now, and again whenever that changes. Ends with an error when this node no longer leads the cell.
    pub fn observe(
        &self,
        election: String,
    ) -> impl Stream<Item = Result<v1::Election, Failure>> + Send + use<> {
        let calls = self.clone();
        futures_util::stream::unfold(Some(None), move |state: Option<Option<u64>>| {
            let (calls, election) = (calls.clone(), election.clone());
            async move {
                let seen = calls.next_leader(&election, state?).await;
                let state = seen.as_ref().ok().map(|seen| Some(epoch_of(seen)));
                Some((seen, state))
            }
        })
    }

    /// Who leads, as soon as that is another one than the one with the known epoch; 0 means nobody.
    pub(crate) async fn next_leader(
        &self,
        election: &str,
        known: Option<u64>,
    ) -> Result<v1::Election, Failure> {
        // First the eye, then the look: what happens in between is not missed.
        let mut changes = self.shared().observers.observe(lock_of(election)?)?;
        loop {
            changes.mark_unchanged();
            let seen = self.election(election)?;
            if known != Some(epoch_of(&seen)) {
                return Ok(seen);
            }
            // A change, or a moment in which this node may have lost its office.
            let _ = tokio::time::timeout(LOOK_AGAIN_AFTER, changes.changed()).await;
        }
    }
}

fn epoch_of(election: &v1::Election) -> u64 {
    election.leader.as_ref().map_or(0, |leader| leader.epoch)
}
