//! The most contended locks, the longest held locks, and the statistics of the last hour.

use std::time::Duration;

use lockkeeper_core::{Refusal, top};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Limit, Request};
use crate::v1;
use crate::wire::{answers, mirror};

/// The locks that need attention, and the statistics of the last hour.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Top {
    /// The locks with the most waiters.
    pub contended: Vec<Contended>,
    /// The locks that are held the longest.
    pub longest_held: Vec<LongHeld>,
    /// Whether the lists are a sample, because there were too many locks or sessions.
    pub sampled: bool,
    /// The statistics of the last hour.
    pub hour: Hour,
}

/// The statistics of the last hour.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hour {
    /// How long requests waited before they were granted.
    pub waited: Spread,
    /// How long locks were held.
    pub held: Spread,
    /// The number of grants in each minute, oldest first.
    pub granted: Vec<u32>,
    /// The number of lost grants in each minute, oldest first.
    pub lost: Vec<u32>,
}

/// Count and percentiles of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Spread {
    /// The number of samples.
    pub count: u64,
    /// The median.
    #[serde(rename = "p50_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub p50: Duration,
    /// The 99th percentile.
    #[serde(rename = "p99_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub p99: Duration,
}

/// A contended lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Contended {
    /// The lock.
    pub lock: String,
    /// The number of waiters.
    pub waiting: u32,
    /// How long the first waiter has waited.
    #[serde(rename = "waited_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub waited: Duration,
    /// The owner of the first holder.
    pub owner: String,
}

/// A lock that has been held for a long time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongHeld {
    /// The lock.
    pub lock: String,
    /// How long it has been held.
    #[serde(rename = "held_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub held: Duration,
    /// The token.
    pub token: u64,
    /// The owner of the holder.
    pub owner: String,
    /// The number of waiters.
    pub waiting: u32,
}

mirror!(Spread = v1::Spread { count; p50 = p50_ms, p99 = p99_ms });
mirror!(Contended = v1::Contended { lock, waiting, owner; waited = waited_ms });
mirror!(LongHeld = v1::LongHeld { lock, token, owner, waiting; held = held_ms });

impl From<Top> for v1::Top {
    fn from(top: Top) -> v1::Top {
        let Top { contended, longest_held, sampled, hour: Hour { waited, held, granted, lost } } = top;
        v1::Top {
            contended: contended.into_iter().map(Into::into).collect(),
            longest_held: longest_held.into_iter().map(Into::into).collect(),
            sampled,
            waited: Some(waited.into()),
            held: Some(held.into()),
            granted,
            lost,
        }
    }
}

impl From<v1::Top> for Top {
    fn from(wire: v1::Top) -> Top {
        let v1::Top { contended, longest_held, sampled, waited, held, granted, lost } = wire;
        let spread = |wire: Option<v1::Spread>| wire.map(Spread::from).unwrap_or_default();
        Top {
            contended: contended.into_iter().map(Into::into).collect(),
            longest_held: longest_held.into_iter().map(Into::into).collect(),
            sampled,
            hour: Hour { waited: spread(waited), held: spread(held), granted, lost },
        }
    }
}

impl From<top::Contended> for Contended {
    fn from(lock: top::Contended) -> Contended {
        let waited = Duration::from_millis(lock.waited_ms);
        Contended { lock: lock.lock.into(), waiting: lock.waiting, waited, owner: lock.owner.into() }
    }
}

impl From<top::LongHeld> for LongHeld {
    fn from(lock: top::LongHeld) -> LongHeld {
        LongHeld {
            lock: lock.lock.into(),
            held: Duration::from_millis(lock.held_ms),
            token: lock.token.0,
            owner: lock.owner.into(),
            waiting: lock.waiting,
        }
    }
}

/// Request for the locks that need attention.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetTop {
    /// Maximum number of locks in each list: 10 if absent or 0, at most 100.
    pub limit: Limit,
}

impl Call for GetTop {
    type Answer = Top;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Top { limit: self.limit.number()? })
    }
}

impl From<v1::GetTopRequest> for Request {
    fn from(request: v1::GetTopRequest) -> Request {
        Request::Top { limit: request.limit as usize }
    }
}

answers! {
    Answer::Top(top) => Top as top;
    Answer::Top(top) => v1::Top as top.into();
}
