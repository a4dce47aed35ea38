//! Refusals of the table. Each kind tells the caller what to do next.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::deadlock::CycleStep;
use crate::id::{LockName, Token};

/// The reason why a command was refused. The table has not changed unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The lock is held or has waiters, and the request does not wait.
    #[error("\"{lock}\" is held or others wait for it: try again later, or wait for it with wait_ms")]
    Busy {
        /// The lock that was not available.
        lock: LockName,
    },
    /// The wait timed out; the request has left the queue.
    #[error("\"{lock}\" did not become free within the wait: the request has left the queue")]
    Timeout {
        /// The lock that was waited for.
        lock: LockName,
    },
    /// The caller cancelled the request.
    #[error("the request was cancelled by its caller")]
    Cancelled,
    /// The token does not hold the lock.
    #[error("token {token} does not hold \"{lock}\": it was released, lost or never granted")]
    NotHeld {
        /// The lock that was named.
        lock: LockName,
        /// The token that was named.
        token: Token,
    },
    /// The session has ended or never existed; everything it held is lost.
    #[error("the session has ended and everything it held is lost: open a new one")]
    SessionLost,
    /// A newer token was granted or used: the caller is no longer the holder and must stop.
    #[error("the token is stale: the last one granted is {last_token}; stop, another holder may be active")]
    StaleToken {
        /// The last token granted for the lock, or the highest that the value has seen.
        last_token: Token,
    },
    /// The value does not have the expected version.
    #[error("the value has version {version}, not the expected one: read it again and retry")]
    VersionMismatch {
        /// The current version; 0 if there is no such value.
        version: u64,
    },
    /// The wait would never end: the request would close a cycle of scopes that wait for each other.
    #[error("waiting for \"{}\" would be a deadlock ({}): release what this scope holds and start over", .cycle.first().map_or("", |step| step.lock.as_str()), DisplayCycle(cycle))]
    Deadlock {
        /// The steps of the cycle, beginning with the scope of the request; the last step waits for the first.
        cycle: Arc<[CycleStep]>,
    },
    /// An older scope blocks the request, and the policy is wait-die.
    #[error(
        "an older scope (of \"{older}\") holds \"{lock}\" or waits for it: release what this scope holds, and start over with the same scope, which keeps its age"
    )]
    Died {
        /// The lock.
        lock: LockName,
        /// The owner of the older scope, for people.
        older: SmolStr,
    },
    /// An older scope wounded this one. All of its locks are lost.
    #[error(
        "an older scope took the locks of this one: all of them are lost; start over with the same scope, which keeps its age"
    )]
    Wounded,
    /// The request is invalid; the text says what to change.
    #[error("{0}")]
    Invalid(SmolStr),
    /// A name or value is longer than allowed.
    #[error("{0}")]
    TooLarge(SmolStr),
    /// A bound is reached; the text says which.
    #[error("{0}")]
    Limit(SmolStr),
}

/// Displays a cycle: each scope and the lock it waits for.
struct DisplayCycle<'a>(&'a [CycleStep]);

impl fmt::Display for DisplayCycle<'_> {
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
    /// An `Invalid` refusal; the text says what to change.
    pub fn invalid(text: impl Into<SmolStr>) -> Refusal {
        Refusal::Invalid(text.into())
    }

    /// A `TooLarge` refusal.
    pub fn too_large(text: impl Into<SmolStr>) -> Refusal {
        Refusal::TooLarge(text.into())
    }

    /// A `Limit` refusal; the text says which bound.
    pub fn limit(text: impl Into<SmolStr>) -> Refusal {
        Refusal::Limit(text.into())
    }
}
