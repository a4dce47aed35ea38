//! Errors, each with its next step.

use std::fmt;

use lockkeeper_api::Code;
use lockkeeper_core::Token;
use smol_str::SmolStr;

/// Error of a lock operation. Each variant has its own next step, which the message states.
///
/// | variant | did it happen? | what to do |
/// |---|---|---|
/// | `Contended`, `Timeout` | no | another client holds the lock: try again later |
/// | `Lost`, `SessionLost`, `NotHeld`, `StaleToken` | no | stop: the lock is no longer yours |
/// | `VersionMismatch` | no | read the value again and retry |
/// | `Unavailable`, `NotLeader` | no | try again later, or on another node |
/// | `Unknown` | perhaps | read the current state before you repeat it |
/// | `Cancelled`, `Closed` | no | your side cancelled it |
/// | `Invalid`, `TooLarge`, `Unsupported`, `Unauthenticated`, `Forbidden` | no | change the request or the configuration |
/// | `Limit` | no | a limit is reached: request less, or raise it |
/// | `Deadlock`, `Wounded`, `Died` | no | release what you hold, and start over |
/// | `Fatal` | no | stop the program and read the message |
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is held or has waiters, and the call must not wait.
    #[error("\"{lock}\" is busy: try again later, or wait for it with wait(..)")]
    Contended {
        /// The lock.
        lock: SmolStr,
    },
    /// The wait ended before the lock was free; the request has left the queue.
    #[error("\"{lock}\" did not become free within the wait: the request has left the queue")]
    Timeout {
        /// The lock.
        lock: SmolStr,
    },
    /// The guard can no longer be relied on: stop the work.
    #[error("lost \"{lock}\": {why}; stop the work")]
    Lost {
        /// The lock.
        lock: SmolStr,
        /// The reason for the loss.
        why: Loss,
    },
    /// The token does not hold the lock: it was released, lost, or released by force.
    #[error("\"{lock}\" is not held by this guard: it was released, lost or released by force")]
    NotHeld {
        /// The lock.
        lock: SmolStr,
    },
    /// The session has ended and everything it held is lost. The keeper opens a new session for the next acquire.
    #[error("the session has ended and everything it held is lost: acquire again")]
    SessionLost,
    /// The token is stale: the lock was granted again since.
    #[error("the token is stale: the last one is {last_token}; stop, another holder may be at work")]
    StaleToken {
        /// The last token granted for the lock, or the highest that the value has seen.
        last_token: Token,
    },
    /// The value has another version than expected.
    #[error("the value has version {version}, not the expected one: read it again and retry")]
    VersionMismatch {
        /// The current version; 0 if there is no such value.
        version: u64,
    },
    /// The node is not the leader. The keeper follows redirects itself, so callers see this only if the time ran out.
    #[error("this node is not the leader of the cell{}: try again", leader_hint(.leader))]
    NotLeader {
        /// The leader's address, if the node knew it.
        leader: Option<SmolStr>,
    },
    /// No server could be reached, or none could serve the request. It did not happen.
    #[error("{0}")]
    Unavailable(SmolStr),
    /// The answer was lost: it may have happened.
    #[error("{0}")]
    Unknown(SmolStr),
    /// The caller cancelled the request.
    #[error("the request was cancelled by its caller")]
    Cancelled,
    /// The keeper was closed.
    #[error("the keeper is closed: connect a new one")]
    Closed,
    /// The request is invalid.
    #[error("{0}")]
    Invalid(SmolStr),
    /// A name or a value is too long.
    #[error("{0}")]
    TooLarge(SmolStr),
    /// A limit is reached.
    #[error("{0}")]
    Limit(SmolStr),
    /// The engine cannot do this.
    #[error("{0}")]
    Unsupported(SmolStr),
    /// The client is not authenticated.
    #[error("{0}")]
    Unauthenticated(SmolStr),
    /// The client is authenticated, but not authorized for the request.
    #[error("{0}")]
    Forbidden(SmolStr),
    /// Waiting would have closed a cycle of waiting scopes; the message names the cycle.
    #[error("{0}")]
    Deadlock(SmolStr),
    /// An older scope took a lock of this scope (wound-wait).
    #[error("{0}")]
    Wounded(SmolStr),
    /// The scope is younger than the holder's and must not wait for it (wait-die).
    #[error("{0}")]
    Died(SmolStr),
    /// Something is broken, and a retry will not help.
    #[error("{0}")]
    Fatal(SmolStr),
}

impl Error {
    /// Returns the code of the HTTP contract; `None` for errors that occur only in the client.
    pub fn contract_code(&self) -> Option<Code> {
        Some(match self {
            Error::Contended { .. } => Code::Busy,
            Error::Timeout { .. } => Code::Timeout,
            Error::NotHeld { .. } => Code::NotHeld,
            Error::SessionLost => Code::SessionLost,
            Error::StaleToken { .. } => Code::StaleToken,
            Error::VersionMismatch { .. } => Code::VersionMismatch,
            Error::NotLeader { .. } => Code::NotLeader,
            Error::Unavailable(_) => Code::Unavailable,
            Error::Invalid(_) => Code::Invalid,
            Error::TooLarge(_) => Code::TooLarge,
            Error::Limit(_) => Code::Limit,
            Error::Unsupported(_) => Code::Unsupported,
            Error::Unauthenticated(_) => Code::Unauthenticated,
            Error::Forbidden(_) => Code::Forbidden,
            Error::Deadlock(_) => Code::Deadlock,
            Error::Wounded(_) => Code::Wounded,
            Error::Died(_) => Code::Died,
            Error::Lost { .. } | Error::Unknown(_) | Error::Cancelled | Error::Closed | Error::Fatal(_) => {
                return None;
            }
        })
    }

    /// Returns the error for an answer of a node. Without a lock in it, the answer cannot be about one.
    #[cfg(any(feature = "cell", feature = "embedded"))]
    pub(crate) fn from_contract(error: lockkeeper_api::Error) -> Error {
        let text = SmolStr::new(&error.message);
        let lock = error.lock.map(SmolStr::from);
        match error.code {
            Code::Busy => lock.map_or(Error::Fatal(text), |lock| Error::Contended { lock }),
            Code::Timeout => lock.map_or(Error::Fatal(text), |lock| Error::Timeout { lock }),
            Code::NotHeld => lock.map_or(Error::Fatal(text), |lock| Error::NotHeld { lock }),
            Code::SessionLost => Error::SessionLost,
            Code::StaleToken => Error::StaleToken { last_token: Token(error.last_token.unwrap_or_default()) },
            Code::VersionMismatch => Error::VersionMismatch { version: error.version.unwrap_or_default() },
            Code::NotLeader => Error::NotLeader { leader: error.leader.flatten().map(SmolStr::from) },
            Code::Unavailable if error.may_have_happened == Some(true) => Error::Unknown(text),
            Code::Unavailable => Error::Unavailable(text),
            Code::Invalid => Error::Invalid(text),
            Code::TooLarge => Error::TooLarge(text),
            Code::Limit => Error::Limit(text),
            Code::Unsupported => Error::Unsupported(text),
            Code::Unauthenticated => Error::Unauthenticated(text),
            Code::Forbidden => Error::Forbidden(text),
            Code::Deadlock => Error::Deadlock(text),
            Code::Wounded => Error::Wounded(text),
            Code::Died => Error::Died(text),
        }
    }

    /// Returns the stable code as text: that of the HTTP contract where there is one.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Lost { .. } => "lost",
            Error::Unknown(_) => "unknown",
            Error::Cancelled => "cancelled",
            Error::Closed => "closed",
            // `Fatal` and the variants above have no code in the contract.
            other => other.contract_code().map_or("fatal", Code::as_str),
        }
    }

    /// Returns true if the operation may have happened although its answer was lost. All other errors mean that it did not.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Error::Unknown(_))
    }

    /// Returns true if the same request can safely be retried later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Contended { .. }
                | Error::Timeout { .. }
                | Error::SessionLost
                | Error::NotLeader { .. }
                | Error::Unavailable(_)
                | Error::Limit(_)
                | Error::Deadlock(_)
                | Error::Wounded(_)
                | Error::Died(_)
        )
    }

    pub(crate) fn unavailable(text: impl Into<SmolStr>) -> Error {
        Error::Unavailable(text.into())
    }

    pub(crate) fn unsupported(text: impl Into<SmolStr>) -> Error {
        Error::Unsupported(text.into())
    }

    pub(crate) fn invalid(text: impl Into<SmolStr>) -> Error {
        Error::Invalid(text.into())
    }
}

fn leader_hint(leader: &Option<SmolStr>) -> String {
    leader.as_ref().map(|leader| format!(" (the leader is at {leader})")).unwrap_or_default()
}

/// Reason why a guard can no longer be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Loss {
    /// The deadline has passed without an acknowledged renewal. The lock may still be held, but the client cannot know.
    Deadline = 1,
    /// The grace period after the deadline has passed too.
    GraceOver = 2,
    /// The session has expired.
    SessionExpired = 3,
    /// The lock was taken away, for example released by an operator.
    TakenAway = 4,
    /// The keeper was closed.
    Closed = 5,
    /// An older scope took the lock.
    Wounded = 6,
    /// The engine's session is suspended: its connection is lost, so it is unknown whether the session still exists. Its
    /// deadline has not passed.
    Suspended = 7,
    /// The cell rejects the client: access control was turned on, or its access token was revoked.
    Refused = 8,
}

impl Loss {
    pub(crate) fn from_u8(number: u8) -> Loss {
        match number {
            1 => Loss::Deadline,
            2 => Loss::GraceOver,
            4 => Loss::TakenAway,
            5 => Loss::Closed,
            6 => Loss::Wounded,
            7 => Loss::Suspended,
            8 => Loss::Refused,
            _ => Loss::SessionExpired,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Deadline => "its deadline passed without a renewal",
            Loss::GraceOver => "its grace period passed without a renewal",
            Loss::SessionExpired => "its session has expired",
            Loss::TakenAway => "it was taken away by force",
            Loss::Closed => "the keeper was closed",
            Loss::Wounded => "an older scope took it",
            Loss::Suspended => "its session is suspended until the connection is back",
            Loss::Refused => {
                "the cell refused to renew its session: access control was turned on, or the access token was revoked; \
                 give the client a valid access token"
            }
        })
    }
}

#[cfg(all(test, any(feature = "cell", feature = "embedded")))]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_contract_has_its_error() {
        for code in Code::ALL {
            let mut answer = lockkeeper_api::Error::new(code, "why");
            answer.lock = Some("orders".to_owned());
            assert_eq!(Error::from_contract(answer).contract_code(), Some(code));
        }
        let mut answer = lockkeeper_api::Error::new(Code::Unavailable, "why");
        answer.may_have_happened = Some(true);
        assert!(Error::from_contract(answer).may_have_happened());
    }
}
