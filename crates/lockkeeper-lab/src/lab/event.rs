//! The events of a run, as the clients, the resource and the lab saw them.

use serde::{Deserialize, Serialize};

/// One event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Time on the machine's monotonic clock.
    pub at_ns: u64,
    /// The source: the name of a client, or `lab`.
    pub who: String,
    /// The lock it concerns.
    pub lock: String,
    /// What happened.
    #[serde(flatten)]
    pub what: EventKind,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The client is connected to its engine and to the resource.
    Ready,
    /// The client requests the lock.
    Asks,
    /// The lock was granted.
    Granted {
        /// The token, if the engine has any.
        token: Option<u64>,
    },
    /// The lock was not granted.
    NotGranted {
        /// The error.
        why: String,
    },
    /// The guard reports that the lock may be lost.
    Lost {
        /// Until when it was held for certain.
        until_ns: u64,
        /// The reason by the guard.
        why: String,
    },
    /// The lock was released.
    Released {
        /// Until when the client relied on it.
        until_ns: u64,
    },
    /// The release failed: the lock was no longer held, or there was no answer.
    NotReleased {
        /// Until when the client relied on it.
        until_ns: u64,
        /// The error.
        why: String,
    },
    /// The client read the resource.
    Read {
        /// Number of updates that it saw.
        updates: u64,
    },
    /// The resource accepted a write.
    Wrote {
        /// Number of updates of others that this write overwrote.
        wiped: u64,
    },
    /// The gate refused a request: the token is stale.
    Refused {
        /// `read` or `write`.
        act: String,
        /// The reason by the gate.
        why: String,
    },
    /// The lab injected a fault, or ended one.
    Fault {
        /// Its description.
        text: String,
        /// The client that it affects, if it is one client.
        victim: Option<String>,
        /// Whether it begins, ends, or has no duration.
        phase: Phase,
    },
    /// A series of rounds is complete.
    Worked {
        /// Number of grants.
        rounds: u64,
        /// Its duration.
        took_ns: u64,
    },
    /// The client failed.
    Failed {
        /// The error.
        why: String,
    },
}

/// The phase of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It begins.
    Begins,
    /// It ends.
    Ends,
    /// It has no duration.
    Once,
}

impl EventKind {
    /// Whether it answers a step that the client was sent.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self, EventKind::Ready | EventKind::Asks | EventKind::Lost { .. } | EventKind::Fault { .. })
    }

    /// A description for people.
    pub fn describe(&self) -> String {
        match self {
            EventKind::Ready => "is ready".to_owned(),
            EventKind::Asks => "requests the lock".to_owned(),
            EventKind::Granted { token: Some(token) } => format!("holds, token {token}"),
            EventKind::Granted { token: None } => "holds, no token".to_owned(),
            EventKind::NotGranted { why } => format!("is not granted: {why}"),
            EventKind::Lost { why, .. } => format!("its guard reports: {why}"),
            EventKind::Released { .. } => "releases".to_owned(),
            EventKind::NotReleased { why, .. } => format!("release refused: {why}"),
            EventKind::Read { updates } => format!("reads {updates} updates"),
            EventKind::Wrote { wiped: 0 } => "writes: accepted".to_owned(),
            EventKind::Wrote { wiped } => format!("writes: accepted, overwrites {wiped} of others' updates"),
            EventKind::Refused { act, why } => format!("{act} refused by the gate: {why}"),
            EventKind::Fault { text, .. } => text.clone(),
            EventKind::Worked { rounds, took_ns } => {
                format!("acquired it {rounds} times in {} ms", took_ns / 1_000_000)
            }
            EventKind::Failed { why } => format!("failed: {why}"),
        }
    }
}
