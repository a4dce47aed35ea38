//! What happened: the last events of a lock, what operators did, and where it is crowded. They serialize as in the HTTP
//! contract.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::fencing::Fencing;
use crate::keeper::Keeper;

/// One thing that happened to a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockEvent {
    /// `granted`, or how a grant ended: `released`, `session_closed`, `session_expired`, `forced`, `cancelled`,
    /// `wounded`.
    pub what: String,
    /// How long ago, in cell time.
    #[serde(rename = "ago_ms", serialize_with = "as_ms")]
    pub ago: Duration,
    /// The leader's wall clock at that moment, in milliseconds since 1970 UTC. For people: it may be wrong.
    pub utc_ms: u64,
    /// The token of the grant.
    pub token: u64,
    /// `exclusive` or `shared`, for a grant.
    pub mode: Option<String>,
    /// Who.
    pub owner: String,
    /// The beginning of its session's id.
    pub session: String,
    /// How long a grant was waited for.
    #[serde(rename = "waited_ms", serialize_with = "as_some_ms")]
    pub waited: Option<Duration>,
    /// How long it had been held when it ended.
    #[serde(rename = "held_ms", serialize_with = "as_some_ms")]
    pub held: Option<Duration>,
    /// Why it was taken away by force.
    pub reason: Option<String>,
}

/// Something that an operator did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditAct {
    /// Counts all acts of the cell.
    pub number: u64,
    /// `force_release`, `members`, `restored`, `access` or `note`.
    pub what: String,
    /// How long ago, in cell time.
    #[serde(rename = "ago_ms", serialize_with = "as_ms")]
    pub ago: Duration,
    /// The leader's wall clock at that moment, in milliseconds since 1970 UTC. For people: it may be wrong.
    pub utc_ms: Option<u64>,
    /// The lock that was freed.
    pub lock: Option<String>,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// How many holders it was taken from.
    pub released: Option<u32>,
    /// The last token afterwards.
    pub last_token: Option<u64>,
    /// The members since then.
    pub members: Option<String>,
    /// Who did it, if the cell asks who its callers are.
    pub by: Option<String>,
    /// What was changed or done, in a line.
    pub change: Option<String>,
}

/// Where to look first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Top {
    /// The locks that most wait for.
    pub contended: Vec<Contended>,
    /// The locks that are held the longest.
    pub longest_held: Vec<LongHeld>,
    /// There were too many to look at all of them.
    pub sampled: bool,
    /// How long requests waited before they were granted, in the last hour.
    pub waited: Spread,
    /// How long locks were held until they were free, in the last hour.
    pub held: Spread,
    /// Grants in each minute of the last hour, the oldest first.
    pub granted: Vec<u32>,
    /// Grants that were taken from their holders in each minute of the last hour.
    pub lost: Vec<u32>,
}

/// A distribution in two figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Spread {
    /// How many there were.
    pub count: u64,
    /// Half of them took no longer.
    #[serde(rename = "p50_ms", serialize_with = "as_ms")]
    pub p50: Duration,
    /// Of a hundred, ninety-nine took no longer.
    #[serde(rename = "p99_ms", serialize_with = "as_ms")]
    pub p99: Duration,
}

/// A lock that many wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Contended {
    /// The lock.
    pub lock: String,
    /// How many wait.
    pub waiting: u32,
    /// How long the first of them has waited.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Duration,
    /// Who holds it.
    pub owner: String,
}

/// A lock that has been held for long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LongHeld {
    /// The lock.
    pub lock: String,
    /// For how long.
    #[serde(rename = "held_ms", serialize_with = "as_ms")]
    pub held: Duration,
    /// The token.
    pub token: u64,
    /// Who holds it.
    pub owner: String,
    /// How many wait for it.
    pub waiting: u32,
}

/// One who waits for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocked {
    /// Who waits.
    pub waiter: String,
    /// For which lock.
    pub lock: String,
    /// Who is in its way.
    pub holder: String,
    /// For how long it has waited.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Duration,
    /// Both are part of a ring of sessions that wait for each other.
    pub in_ring: bool,
}

impl<F: Fencing> Keeper<F> {
    /// The last events of a lock, the newest first: at most 32, and fewer if `limit` is not 0. It survives restarts and
    /// fail-overs of the cell.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn history(&self, name: &str, limit: u32) -> Result<Vec<LockEvent>, Error> {
        self.shared.engine.history(name, limit).await
    }

    /// What operators did, the newest first; 0 means the last hundred acts.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn audit(&self, limit: u32) -> Result<Vec<AuditAct>, Error> {
        self.shared.engine.audit(limit).await
    }

    /// Where to look first: the locks that most wait for, those held the longest, the last hour in figures. At most
    /// `limit` locks in each list; 0 means ten.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn top(&self, limit: u32) -> Result<Top, Error> {
        self.shared.engine.top(limit).await
    }

    /// Who waits for whom, beginning with those who wait for this lock, and on to what its holders wait for in turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn blocked(&self, name: &str) -> Result<Vec<Blocked>, Error> {
        self.shared.engine.blocked(name).await
    }
}

fn as_ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn as_some_ms<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => as_ms(duration, serializer),
        None => serializer.serialize_none(),
    }
}
