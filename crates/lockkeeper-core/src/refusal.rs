//! Why the table refused: each kind tells the caller what to do next.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::deadlock::CycleStep;
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
    /// The wait would never end: the request would close a circle of scopes that wait for each other.
    #[error("to wait for \"{}\" would be a deadlock ({}): release what this scope holds and begin again", .cycle.first().map_or("", |step| step.lock.as_str()), Circle(cycle))]
    Deadlock {
        /// Who waits for which lock, beginning with the scope of the request; the last one waits for the first.
        cycle: Arc<[CycleStep]>,
    },
    /// An older scope is in the way, and the policy is wait-die.
    #[error(
        "an older scope (of \"{older}\") has \"{lock}\" or waits for it: release what this scope holds, and begin again with the same scope, which keeps its age"
    )]
    Died {
        /// The lock.
        lock: LockName,
        /// Who the older one is, for people.
        older: SmolStr,
    },
    /// An older scope took what this one held. All of the scope's locks are gone.
    #[error(
        "an older scope took what this one held: all its locks are gone; begin again with the same scope, which keeps its age"
    )]
    Wounded,
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

/// A circle for people: each scope and the lock it waits for.
struct Circle<'a>(&'a [CycleStep]);

impl fmt::Display for Circle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, CycleStep { scope, owner, lock }) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            let scope = if scope.is_empty() { "a request without a scope" } else { scope };
            write!(f, "{comma}{scope} of {owner} waits for \"{lock}\"")?;
        }
        Ok(())
    }
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
