//! Why a request failed: the codes of the public contract, each with the next step (S12).

use std::borrow::Cow;
use std::convert::Infallible;

use lockkeeper_api::{Code, WrongAnswer};
use lockkeeper_core::command::RETRY_ADVICE;
use lockkeeper_core::{Refusal, Reply};

/// The outcome of a command.
pub type Outcome = Result<Reply, Failure>;

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The lock table refused the command; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another node leads; nothing has happened here.
    #[error("this node does not lead the cell: {}", where_to(leader))]
    NotLeader {
        /// The leader's address, if it is known.
        leader: Option<String>,
    },
    /// The outcome is unknown: the command may have been applied.
    #[error("{why}: it may have happened; {next_step}")]
    Unknown {
        /// What interrupted it.
        why: Cow<'static, str>,
        /// What the caller should do about it.
        next_step: &'static str,
    },
    /// Nothing has happened, and the cell cannot serve the request now.
    #[error("{0}")]
    Unavailable(String),
    /// The node is overloaded; nothing has happened.
    #[error("{why}: retry in {retry_after_ms} ms")]
    Overload {
        /// Which limit was reached.
        why: Cow<'static, str>,
        /// When to retry.
        retry_after_ms: u64,
    },
    /// This cell does not support the request.
    #[error("{0}")]
    Unsupported(String),
    /// The request is malformed or contradicts itself.
    #[error("{0}")]
    Invalid(String),
    /// Something in the request is too large.
    #[error("{0}")]
    TooLarge(String),
    /// The caller is not authenticated.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller is authenticated but lacks the right.
    #[error("{0}")]
    Forbidden(String),
}

fn where_to(leader: &Option<String>) -> String {
    match leader {
        Some(address) => format!("ask {address}"),
        None => "no leader is known yet, retry shortly".to_owned(),
    }
}

impl Failure {
    pub(crate) fn no_leader() -> Failure {
        Failure::Unavailable("the cell has no leader: retry shortly".to_owned())
    }

    pub(crate) fn no_majority() -> Failure {
        Failure::Unavailable(
            "a majority of the cell's members does not respond: nothing can be granted until it does"
                .to_owned(),
        )
    }

    /// Returns an unknown outcome of an unspecified command.
    pub(crate) fn unknown(why: impl Into<Cow<'static, str>>) -> Failure {
        Failure::Unknown { why: why.into(), next_step: RETRY_ADVICE }
    }

    /// Sets the next step for this kind of command.
    pub(crate) fn in_doubt(self, next_step: &'static str) -> Failure {
        match self {
            Failure::Unknown { why, .. } => Failure::Unknown { why, next_step },
            other => other,
        }
    }

    /// Returns the code of the public contract.
    pub fn code(&self) -> Code {
        match self {
            Failure::Refused(refusal) => Code::from(refusal),
            Failure::NotLeader { .. } => Code::NotLeader,
            Failure::Unknown { .. } | Failure::Unavailable(_) => Code::Unavailable,
            Failure::Overload { .. } => Code::Limit,
            Failure::Unsupported(_) => Code::Unsupported,
            Failure::Invalid(_) => Code::Invalid,
            Failure::TooLarge(_) => Code::TooLarge,
            Failure::Unauthenticated(_) => Code::Unauthenticated,
            Failure::Forbidden(_) => Code::Forbidden,
        }
    }

    /// True if the request may have been carried out despite the failure.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Failure::Unknown { .. })
    }
}

/// The failure as callers see it.
impl From<&Failure> for lockkeeper_api::Error {
    fn from(failure: &Failure) -> lockkeeper_api::Error {
        let mut error = match failure {
            Failure::Refused(refusal) => lockkeeper_api::Error::from(refusal),
            other => lockkeeper_api::Error::new(other.code(), other.to_string()),
        };
        match failure {
            Failure::NotLeader { leader } => error.leader = Some(leader.clone()),
            Failure::Unknown { .. } | Failure::Unavailable(_) => {
                error.may_have_happened = Some(failure.may_have_happened());
            }
            Failure::Overload { retry_after_ms, .. } => error.retry_after_ms = Some(*retry_after_ms),
            Failure::Refused(_)
            | Failure::Unsupported(_)
            | Failure::Invalid(_)
            | Failure::TooLarge(_)
            | Failure::Unauthenticated(_)
            | Failure::Forbidden(_) => {}
        }
        error
    }
}

impl From<WrongAnswer> for Failure {
    fn from(wrong: WrongAnswer) -> Failure {
        Failure::unknown(wrong.to_string())
    }
}

/// For conversions that cannot fail.
impl From<Infallible> for Failure {
    fn from(never: Infallible) -> Failure {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Acquire, Command, Locks, SessionId};

    use super::*;

    #[test]
    fn an_unknown_outcome_names_the_next_step() {
        let acquire = Command::Acquire(Acquire::new(SessionId(1), Locks::One("a".into())));
        let text = Failure::unknown("the leader has changed").in_doubt(acquire.retry_advice()).to_string();
        assert!(text.contains("it may have happened") && text.contains("check who holds the lock"), "{text}");
    }
}
