//! Errors that say what to do next.

use std::fmt;

use lockkeeper_api::Code;
use lockkeeper_core::Token;
use smol_str::SmolStr;

/// Why something could not be done. Each kind has its own next step; the text of the error says it.
///
/// | variant | did it happen? | what to do |
/// |---|---|---|
/// | `Contended`, `Timeout` | no | somebody else is at work: come back later |
/// | `Lost`, `SessionLost`, `NotHeld`, `StaleToken` | no | stop: the lock is no longer yours |
/// | `VersionMismatch` | no | read again and decide anew |
/// | `Unavailable`, `NotLeader` | no | try again later, or elsewhere |
/// | `Unknown` | perhaps | read what is there before you repeat it |
/// | `Cancelled`, `Closed` | no | your own side gave it up |
/// | `Invalid`, `TooLarge`, `Unsupported`, `Unauthenticated`, `Forbidden` | no | change the request or the set-up |
/// | `Limit` | no | a bound is reached: ask for less, or raise it |
/// | `Deadlock`, `Wounded`, `Died` | no | give back what you hold, and start over |
/// | `Fatal` | no | stop the program and look at the text |
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is held or others wait for it, and the caller did not want to wait.
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
    #[error("\"{lock}\" is no longer surely yours: {why}; stop the work")]
    Lost {
        /// The lock.
        lock: SmolStr,
        /// Why.
        why: Loss,
    },
    /// The token does not hold the lock: it was released, lost, or taken away.
    #[error("\"{lock}\" is not held by this guard: it was released, lost or taken away")]
    NotHeld {
        /// The lock.
        lock: SmolStr,
    },
    /// The session has ended, and everything that it held is lost. The keeper opens a new one for the next acquire.
    #[error("the session has ended and everything it held is lost: acquire again")]
    SessionLost,
    /// A newer token has been seen: somebody else has held the lock since.
    #[error("the token is stale: the last one is {last_token}; stop, somebody else may be at work")]
    StaleToken {
        /// The last token granted for the lock, or the highest that the value has seen.
        last_token: Token,
    },
    /// The value has another version than expected.
    #[error("the value has version {version}, not the expected one: read it again and decide anew")]
    VersionMismatch {
        /// The version that it has; 0 if there is no such value.
        version: u64,
    },
    /// The node that was asked does not lead. The keeper goes to the leader by itself; you see this only if there was no
    /// time left.
    #[error("the node that was asked does not lead the cell{}: try again", at_leader(.leader))]
    NotLeader {
        /// The leader's address, if the node knew it.
        leader: Option<SmolStr>,
    },
    /// Nobody could be asked, or nobody could answer. It did not happen.
    #[error("{0}")]
    Unavailable(SmolStr),
    /// The answer was lost: it may have happened.
    #[error("{0}")]
    Unknown(SmolStr),
    /// The request was given up by its caller.
    #[error("the request was given up by its caller")]
    Cancelled,
    /// The keeper was closed.
    #[error("the keeper is closed: connect a new one")]
    Closed,
    /// The request makes no sense as it is.
    #[error("{0}")]
    Invalid(SmolStr),
    /// A name or a value is too long.
    #[error("{0}")]
    TooLarge(SmolStr),
    /// A bound is reached.
    #[error("{0}")]
    Limit(SmolStr),
    /// The engine cannot do this.
    #[error("{0}")]
    Unsupported(SmolStr),
    /// The cell does not know who asks.
    #[error("{0}")]
    Unauthenticated(SmolStr),
    /// The cell knows who asks, and does not allow it.
    #[error("{0}")]
    Forbidden(SmolStr),
    /// Granting it would have closed a circle of waits; the text names the circle.
    #[error("{0}")]
    Deadlock(SmolStr),
    /// An older scope took the lock away (wound-wait).
    #[error("{0}")]
    Wounded(SmolStr),
    /// The scope is younger than the holder's and may not wait for it (wait-die).
    #[error("{0}")]
    Died(SmolStr),
    /// Something is broken that a retry will not mend.
    #[error("{0}")]
    Fatal(SmolStr),
}

impl Error {
    /// The code of the HTTP contract; `None` for errors that only a client has.
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

    /// The stable code as text: that of the HTTP contract where there is one.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Lost { .. } => "lost",
            Error::Unknown(_) => "unknown",
            Error::Cancelled => "cancelled",
            Error::Closed => "closed",
            // `Fatal` has no code of the contract, and neither have those above.
            other => other.contract_code().map_or("fatal", Code::as_str),
        }
    }

    /// It may have happened, although there is no answer. All other errors mean that it did not.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Error::Unknown(_))
    }

    /// The same request can succeed later, as it is, without harm.
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

fn at_leader(leader: &Option<SmolStr>) -> String {
    leader.as_ref().map(|leader| format!(" (the leader is at {leader})")).unwrap_or_default()
}

/// Why a guard can no longer be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Loss {
    /// The deadline has passed without an acknowledged renewal. It may still be held, but nobody can know.
    Deadline = 1,
    /// The grace period after the deadline has passed as well.
    GraceOver = 2,
    /// The session has expired.
    SessionExpired = 3,
    /// The lock was taken away, by an operator for example.
    TakenAway = 4,
    /// The keeper was closed.
    Closed = 5,
    /// An older scope took the lock.
    Wounded = 6,
    /// The engine's session is suspended: its connection is lost, and whether it lives on is known when it is back. Its
    /// deadline has not passed.
    Suspended = 7,
    /// The cell refuses the client: access control was turned on, or its access token was revoked.
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
