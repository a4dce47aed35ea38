//! Elections: the leader is the holder of the lock `election/NAME`, and its epoch is the token of the grant.

use lockkeeper_core::{Acquire, Command, Grant, Locks, Refusal, Token};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::acquire::RequestId;
use crate::lock::LockState;
use crate::request::{Answer, Call, Done, Request, election_lock, session_id, some_text, wait};
use crate::v1;
use crate::wire::{answers, mirror};

/// Request to become a candidate of an election.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Campaign {
    /// The candidate's session.
    pub session: String,
    /// The election.
    pub election: String,
    /// The value to announce as leader.
    pub value: String,
    /// How long to wait to become leader; 0 never waits.
    pub wait_ms: Option<u64>,
    /// Wait without a limit; wait_ms is then ignored.
    pub wait_forever: Option<bool>,
    /// The client's id of this request.
    pub request: Option<RequestId>,
}

/// The answer to an elected candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Elected {
    /// Greater than that of every earlier leader: a fencing token.
    pub epoch: u64,
}

mirror!(Elected = v1::CampaignResponse { epoch });

impl From<Grant> for Elected {
    fn from(grant: Grant) -> Elected {
        Elected { epoch: grant.token.0 }
    }
}

impl Call for Campaign {
    type Answer = Elected;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "election": "reports", "value": "host-3", "wait_ms": 60000}"#,
        r#"{"epoch": 42}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        let acquire = Acquire {
            request: self.request.map(|id| id.0),
            wait: wait(self.wait_ms.unwrap_or(0), self.wait_forever.unwrap_or(false)),
            value: Some(self.value.into()),
            ..Acquire::new(session_id(&self.session)?, Locks::One(election_lock(&self.election)?))
        };
        Ok(Command::Acquire(acquire).into())
    }
}

impl TryFrom<v1::CampaignRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::CampaignRequest) -> Result<Request, Refusal> {
        let acquire = Acquire {
            request: some_text(request.request),
            wait: wait(request.wait_ms, request.wait_forever),
            value: Some(request.value.into()),
            ..Acquire::new(session_id(&request.session)?, Locks::One(election_lock(&request.election)?))
        };
        Ok(Command::Acquire(acquire).into())
    }
}

/// Request to step down as leader.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Resign {
    /// The leader's session.
    pub session: String,
    /// The election.
    pub election: String,
    /// Its epoch.
    pub epoch: u64,
}

fn resign(session: &str, election: &str, epoch: u64) -> Result<Request, Refusal> {
    let (session, lock) = (session_id(session)?, election_lock(election)?);
    Ok(Command::Release { session, lock, token: Token(epoch), forget: false }.into())
}

impl Call for Resign {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "election": "reports", "epoch": 42}"#,
        "{}",
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        resign(&self.session, &self.election, self.epoch)
    }
}

impl TryFrom<v1::ResignRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::ResignRequest) -> Result<Request, Refusal> {
        resign(&request.session, &request.election, request.epoch)
    }
}

/// Request to hand leadership over to a candidate, whatever its place in the queue.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HandOver {
    /// The leader's session.
    pub session: String,
    /// The election.
    pub election: String,
    /// Its epoch.
    pub epoch: u64,
    /// The value, or else the owner, of the candidate that shall lead.
    pub to: String,
}

fn hand_over(session: &str, election: &str, epoch: u64, to: String) -> Result<Request, Refusal> {
    let (session, lock) = (session_id(session)?, election_lock(election)?);
    Ok(Command::HandOver { session, lock, token: Token(epoch), to: SmolStr::from(to) }.into())
}

impl Call for HandOver {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "election": "reports", "epoch": 42, "to": "host-4"}"#,
        "{}",
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        hand_over(&self.session, &self.election, self.epoch, self.to)
    }
}

impl TryFrom<v1::HandOverRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::HandOverRequest) -> Result<Request, Refusal> {
        hand_over(&request.session, &request.election, request.epoch, request.to)
    }
}

/// Request for the leader of an election.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetElection {
    /// The election.
    pub name: String,
}

/// The state of an election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Election {
    /// Null if there is no leader.
    pub leader: Option<Leader>,
    /// The number of waiting candidates.
    pub candidates: u32,
}

/// The leader of an election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Leader {
    /// The value that it announced.
    pub value: String,
    /// Greater than that of every earlier leader: a fencing token.
    pub epoch: u64,
    /// The owner of its session, for people.
    pub owner: String,
}

mirror!(Election = v1::Election { leader, candidates });
mirror!(Leader = v1::Leader { value, epoch, owner });

impl Leader {
    /// The holder of the lock of an election, if it is held.
    pub fn of(lock: LockState) -> Option<Leader> {
        let holder = lock.holders.into_iter().next()?;
        Some(Leader { value: holder.value, epoch: holder.token, owner: holder.owner })
    }
}

impl From<LockState> for Election {
    fn from(lock: LockState) -> Election {
        let candidates = lock.waiting;
        Election { leader: Leader::of(lock), candidates }
    }
}

impl Election {
    /// The leader's epoch; 0 if there is no leader.
    pub fn epoch(&self) -> u64 {
        self.leader.as_ref().map_or(0, |leader| leader.epoch)
    }
}

impl Call for GetElection {
    type Answer = Election;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Election(election_lock(&self.name)?))
    }
}

impl TryFrom<v1::GetElectionRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::GetElectionRequest) -> Result<Request, Refusal> {
        Ok(Request::Election(election_lock(&request.election)?))
    }
}

answers! {
    Answer::Granted(grant) => Elected as grant.into();
    Answer::Election(election) => Election as election;
    Answer::Done => v1::ResignResponse as Self {};
    Answer::Done => v1::HandOverResponse as Self {};
    Answer::Granted(grant) => v1::CampaignResponse as Self { epoch: grant.token.0 };
    Answer::Election(election) => v1::Election as election.into();
}
