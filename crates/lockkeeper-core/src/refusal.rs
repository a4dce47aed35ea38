//! Why the table refused: each kind tells the caller what to do next.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::{LockName, Token};

/// A refusal. Nothing has changed in the table, unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The lock is held or others wait for it, and the caller did not want to wait.
    #[error("\"{lock}\" is held or others wait for it: try again later, or wait for it with wait_ms")]
    Busy {
        /// The lock that could not be had at once.
        lock: LockName,
    },
    /// The wait ended before the lock was free; the request has left the queue.
    #[error("\"{lock}\" did not become free within the wait: the request has left the queue")]
    Timeout {
        /// The lock that was waited for.
        lock: LockName,
    },
    /// The wait was given up by the caller; the request has left the queue.
    #[error("the request was given up by its caller")]
    Cancelled,
    /// The token does not hold the lock.
    #[error("token {token} does not hold \"{lock}\": it was released, lost or never granted")]
    NotHeld {
        /// The lock that was named.
        lock: LockName,
        /// The token that was named.
        token: Token,
    },
    /// The session has ended or never was; everything it held is lost.
    #[error("the session has ended and everything it held is lost: open a new one")]
    SessionLost,
    /// A newer token has been seen: the caller is no longer the holder and must stop.
    #[error("the token is stale: the last one granted is {last_token}; stop, somebody else may be at work")]
    StaleToken {
        /// The last token granted for the lock, or the highest that the value has seen.
        last_token: Token,
    },
    /// The value has another version than the caller expected.
    #[error("the value has version {version}, not the expected one: read it again and decide anew")]
    VersionMismatch {
        /// The version that it has; 0 if there is no such value.
        version: u64,
    },
    /// The request makes no sense as it is; the text says what to change.
    #[error("{0}")]
    Invalid(SmolStr),
    /// A name or value is longer than allowed.
    #[error("{0}")]
    TooLarge(SmolStr),
    /// A bound of the table is reached; the text says which.
    #[error("{0}")]
    Limit(SmolStr),
}

impl Refusal {
    /// A refusal with a text that says what to change.
    pub fn invalid(text: impl Into<SmolStr>) -> Refusal {
        Refusal::Invalid(text.into())
    }

    /// A refusal of something that is too long.
    pub fn too_large(text: impl Into<SmolStr>) -> Refusal {
        Refusal::TooLarge(text.into())
    }

    /// A refusal at a bound of the table.
    pub fn limit(text: impl Into<SmolStr>) -> Refusal {
        Refusal::Limit(text.into())
    }
}
