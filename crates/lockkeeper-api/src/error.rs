//! Errors for callers: one type for JSON and protobuf.

use lockkeeper_core::{CycleStep, Refusal};
use serde::Serialize;

use crate::code::{Code, UnknownCode};
use crate::v1;

/// The keys of the gRPC metadata that carry an error.
pub mod metadata {
    /// The code of the contract.
    pub const CODE: &str = "lockkeeper-code";
    /// With `not_leader`: the leader's address, if it is known.
    pub const LEADER: &str = "lockkeeper-leader";
    /// With `stale_token`: the last token granted.
    pub const LAST_TOKEN: &str = "lockkeeper-last-token";
    /// With `version_mismatch`: the current version; absent if there is no such value.
    pub const VERSION: &str = "lockkeeper-version";
    /// With `limit`, when the node is overloaded: when to retry, in milliseconds.
    pub const RETRY_AFTER_MS: &str = "lockkeeper-retry-after-ms";
}

/// The error of a refused request. Each detail is present only with the codes that it belongs to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
pub struct Error {
    /// The error code.
    pub code: Code,
    /// The reason and the next step, for people.
    pub message: String,
    /// The lock that the request could not acquire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// With `stale_token`: the last token granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_token: Option<u64>,
    /// With `version_mismatch`: the current version; 0 if there is no such value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// With `not_leader`: the leader's address; null if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<Option<String>>,
    /// With `deadlock`: the scopes and the locks they wait for, beginning with the scope of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<CycleStepSchema>>"))]
    pub cycle: Option<Vec<CycleStep>>,
    /// With `unavailable`: whether the request may have been executed anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_have_happened: Option<bool>,
    /// With `limit`, when the node is overloaded: when to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The body of an error response.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Error"))]
pub struct ErrorBody {
    /// The error.
    pub error: Error,
}

/// One step of the cycle of a deadlock.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(rename = "CycleStep")]
#[allow(dead_code, reason = "only its schema is used: the core does not depend on schemars")]
struct CycleStepSchema {
    /// Empty for a request without a scope.
    scope: String,
    /// The owner of the session, for people.
    owner: String,
    /// The lock that it waits for.
    lock: String,
}

impl Error {
    /// An error without details.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            message: message.into(),
            lock: None,
            last_token: None,
            version: None,
            leader: None,
            cycle: None,
            may_have_happened: None,
            retry_after_ms: None,
        }
    }
}

impl From<&Refusal> for Error {
    fn from(refusal: &Refusal) -> Error {
        let mut error = Error::new(Code::from(refusal), refusal.to_string());
        match refusal {
            Refusal::StaleToken { last_token } => error.last_token = Some(last_token.0),
            Refusal::VersionMismatch { version } => error.version = Some(*version),
            Refusal::Busy { lock }
            | Refusal::Timeout { lock }
            | Refusal::NotHeld { lock, .. }
            | Refusal::Died { lock, .. } => error.lock = Some(lock.to_string()),
            Refusal::Deadlock { cycle } => {
                error.lock = cycle.first().map(|step| step.lock.to_string());
                error.cycle = Some(cycle.to_vec());
            }
            Refusal::Cancelled
            | Refusal::SessionLost
            | Refusal::Wounded
            | Refusal::Invalid(_)
            | Refusal::TooLarge(_)
            | Refusal::Limit(_) => {}
        }
        error
    }
}

impl From<Error> for v1::Error {
    fn from(error: Error) -> v1::Error {
        let step = |step: CycleStep| v1::CycleStep {
            scope: step.scope.to_string(),
            owner: step.owner.to_string(),
            lock: step.lock.to_string(),
        };
        v1::Error {
            code: error.code.as_str().to_owned(),
            message: error.message,
            last_token: error.last_token.unwrap_or_default(),
            version: error.version.unwrap_or_default(),
            leader: error.leader.flatten().unwrap_or_default(),
            may_have_happened: error.may_have_happened.unwrap_or_default(),
            cycle: error.cycle.unwrap_or_default().into_iter().map(step).collect(),
            retry_after_ms: error.retry_after_ms.unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::Error> for Error {
    type Error = UnknownCode;

    fn try_from(error: v1::Error) -> Result<Error, UnknownCode> {
        let code: Code = error.code.parse()?;
        let step = |step: v1::CycleStep| CycleStep {
            scope: step.scope.into(),
            owner: step.owner.into(),
            lock: step.lock.into(),
        };
        let leader = (!error.leader.is_empty()).then_some(error.leader);
        let cycle = error.cycle.into_iter().map(step).collect();
        Ok(Error {
            code,
            message: error.message,
            // A message on a stream answers an operation, which names its lock.
            lock: None,
            last_token: (code == Code::StaleToken).then_some(error.last_token),
            version: (code == Code::VersionMismatch).then_some(error.version),
            leader: (code == Code::NotLeader).then_some(leader),
            cycle: (code == Code::Deadlock).then_some(cycle),
            may_have_happened: (code == Code::Unavailable).then_some(error.may_have_happened),
            retry_after_ms: (error.retry_after_ms > 0).then_some(error.retry_after_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_detail_survives_the_message_on_a_stream() {
        let details = [
            Error { last_token: Some(7), ..Error::new(Code::StaleToken, "stale") },
            Error { version: Some(0), ..Error::new(Code::VersionMismatch, "other version") },
            Error { leader: Some(Some("b:7420".to_owned())), ..Error::new(Code::NotLeader, "not here") },
            Error { leader: Some(None), ..Error::new(Code::NotLeader, "not here") },
            Error { may_have_happened: Some(true), ..Error::new(Code::Unavailable, "no majority") },
            Error { retry_after_ms: Some(20), ..Error::new(Code::Limit, "overloaded") },
            Error {
                cycle: Some(vec![CycleStep { scope: "a".into(), owner: "b".into(), lock: "c".into() }]),
                ..Error::new(Code::Deadlock, "a cycle")
            },
        ];
        for error in details {
            assert_eq!(Error::try_from(v1::Error::from(error.clone())), Ok(error));
        }
        let unknown = v1::Error { code: "newer_code".to_owned(), ..v1::Error::default() };
        assert_eq!(Error::try_from(unknown), Err(UnknownCode));
    }
}
