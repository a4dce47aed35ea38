//! Why a request was not answered as hoped: the codes of the public contract, with what to do next (S12).

use std::borrow::Cow;

use lockkeeper_core::{Refusal, Reply};

use crate::doubt;

/// What a caller gets in the end.
pub type Outcome = Result<Reply, Failure>;

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The lock table refused; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another node leads; nothing has happened here.
    #[error("this node does not lead the cell: {}", where_to(leader))]
    NotLeader {
        /// The leader's address, if it is known.
        leader: Option<String>,
    },
    /// It may or may not have happened.
    #[error("{why}: it may have happened; {next_step}")]
    Unknown {
        /// What has come between.
        why: Cow<'static, str>,
        /// What the caller should do about it.
        next_step: &'static str,
    },
    /// Nothing has happened, and nothing can for the moment.
    #[error("{0}")]
    Unavailable(String),
    /// The node has more to do than it can carry; nothing has happened.
    #[error("{why}: come back in {retry_after_ms} ms")]
    Overload {
        /// Of what there is too much.
        why: Cow<'static, str>,
        /// When it makes sense to ask again.
        retry_after_ms: u64,
    },
    /// This cell cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Something in the request is too large.
    #[error("{0}")]
    TooLarge(String),
    /// Nobody knows who asks.
    #[error("{0}")]
    Unauthenticated(String),
    /// It is known who asks, and it is not allowed.
    #[error("{0}")]
    Forbidden(String),
}

fn where_to(leader: &Option<String>) -> String {
    match leader {
        Some(address) => format!("ask {address}"),
        None => "no leader is known yet, try again shortly".to_owned(),
    }
}

impl Failure {
    pub(crate) fn no_leader() -> Failure {
        Failure::Unavailable("the cell has no leader for the moment: try again shortly".to_owned())
    }

    pub(crate) fn no_majority() -> Failure {
        Failure::Unavailable(
            "a majority of the cell's members does not answer: nothing can be granted until they are back"
                .to_owned(),
        )
    }

    /// It may have happened, and nobody here knows what it was.
    pub(crate) fn unknown(why: impl Into<Cow<'static, str>>) -> Failure {
        Failure::Unknown { why: why.into(), next_step: doubt::ANYTHING }
    }

    /// The same with the next step for this kind of command.
    pub(crate) fn in_doubt(self, next_step: &'static str) -> Failure {
        match self {
            Failure::Unknown { why, .. } => Failure::Unknown { why, next_step },
            other => other,
        }
    }

    /// The code of the public contract.
    pub fn code(&self) -> &'static str {
        match self {
            Failure::Refused(refusal) => match refusal {
                Refusal::Busy { .. } => "busy",
                Refusal::Timeout { .. } | Refusal::Cancelled => "timeout",
                Refusal::NotHeld { .. } => "not_held",
                Refusal::SessionLost => "session_lost",
                Refusal::StaleToken { .. } => "stale_token",
                Refusal::VersionMismatch { .. } => "version_mismatch",
                Refusal::Deadlock { .. } => "deadlock",
                Refusal::Died { .. } => "died",
                Refusal::Wounded => "wounded",
                Refusal::Invalid(_) => "invalid",
                Refusal::TooLarge(_) => "too_large",
                Refusal::Limit(_) => "limit",
            },
            Failure::NotLeader { .. } => "not_leader",
            Failure::Unknown { .. } | Failure::Unavailable(_) => "unavailable",
            Failure::Overload { .. } => "limit",
            Failure::Unsupported(_) => "unsupported",
            Failure::Invalid(_) => "invalid",
            Failure::TooLarge(_) => "too_large",
            Failure::Unauthenticated(_) => "unauthenticated",
            Failure::Forbidden(_) => "forbidden",
        }
    }

    /// The HTTP status that goes with the code.
    pub fn http_status(&self) -> u16 {
        match self.code() {
            "busy" | "not_held" | "deadlock" | "died" | "wounded" => 409,
            "timeout" => 408,
            "session_lost" => 410,
            "stale_token" | "version_mismatch" => 412,
            "unsupported" => 501,
            "invalid" => 400,
            "too_large" => 413,
            "limit" => 429,
            "unauthenticated" => 401,
            "forbidden" => 403,
            "not_leader" => 421,
            _ => 503,
        }
    }

    /// True if the request may have been carried out all the same.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Failure::Unknown { .. })
    }

    /// The failure on the wire.
    pub fn to_wire(&self) -> lockkeeper_api::v1::Error {
        let mut error = lockkeeper_api::v1::Error {
            code: self.code().to_owned(),
            message: self.to_string(),
            may_have_happened: self.may_have_happened(),
            ..Default::default()
        };
        match self {
            Failure::Refused(Refusal::StaleToken { last_token }) => error.last_token = last_token.0,
            Failure::Refused(Refusal::VersionMismatch { version }) => error.version = *version,
            Failure::Refused(Refusal::Deadlock { cycle }) => {
                error.cycle = cycle
                    .iter()
                    .map(|step| lockkeeper_api::v1::CycleStep {
                        scope: step.scope.to_string(),
                        owner: step.owner.to_string(),
                        lock: step.lock.to_string(),
                    })
                    .collect();
            }
            Failure::NotLeader { leader } => error.leader = leader.clone().unwrap_or_default(),
            Failure::Overload { retry_after_ms, .. } => error.retry_after_ms = *retry_after_ms,
            _ => {}
        }
        error
    }
}
