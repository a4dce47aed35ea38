//! What happened, as the clients, the resource and the lab saw it.

use serde::{Deserialize, Serialize};

/// One thing that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// When, on the machine's monotonic clock.
    pub at_ns: u64,
    /// Who says so: a client by its name, or `lab`.
    pub who: String,
    /// Which lock it is about.
    pub lock: String,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The client is connected to its engine and to the resource.
    Ready,
    /// It asks for the lock.
    Asks,
    /// It was let in.
    Granted {
        /// The token, if the engine has any.
        token: Option<u64>,
    },
    /// It was not let in.
    NotGranted {
        /// The error, in words.
        why: String,
    },
    /// Its guard says that the lock is no longer surely its own.
    Lost {
        /// Up to when it had been.
        until_ns: u64,
        /// What the guard says.
        why: String,
    },
    /// It has given the lock back.
    Released {
        /// Up to when it relied on it.
        until_ns: u64,
    },
    /// It wanted to give the lock back, which was not its own any more, or nobody answered.
    NotReleased {
        /// Up to when it relied on it.
        until_ns: u64,
        /// The error, in words.
        why: String,
    },
    /// It has read the resource.
    Read {
        /// How many updates it saw there.
        updates: u64,
    },
    /// The resource has taken its write.
    Wrote {
        /// Updates of others that this write has wiped out.
        wiped: u64,
    },
    /// The gate has refused it: the token is stale.
    Refused {
        /// What it wanted to do.
        act: String,
        /// What the gate says.
        why: String,
    },
    /// The lab made a fault, or ended one.
    Fault {
        /// In words.
        text: String,
        /// Whom it struck, if it was a client.
        victim: Option<String>,
        /// Whether it begins, ends, or is over at once.
        phase: Phase,
    },
    /// A piece of work is done.
    Worked {
        /// How often the lock was taken.
        rounds: u64,
        /// How long it took.
        took_ns: u64,
    },
    /// The client cannot go on.
    Failed {
        /// In words.
        why: String,
    },
}

/// When a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From now on.
    Begins,
    /// Until now.
    Ends,
    /// Now.
    Once,
}

impl What {
    /// Whether it answers a step that the client was told to take.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self, What::Ready | What::Asks | What::Lost { .. } | What::Fault { .. })
    }

    /// In words, for people.
    pub fn words(&self) -> String {
        match self {
            What::Ready => "is ready".to_owned(),
            What::Asks => "asks for the lock".to_owned(),
            What::Granted { token: Some(token) } => format!("holds, token {token}"),
            What::Granted { token: None } => "holds, no token".to_owned(),
            What::NotGranted { why } => format!("is not let in: {why}"),
            What::Lost { why, .. } => format!("its guard says: {why}"),
            What::Released { .. } => "releases".to_owned(),
            What::NotReleased { why, .. } => format!("release refused: {why}"),
            What::Read { updates } => format!("reads {updates} updates"),
            What::Wrote { wiped: 0 } => "writes: accepted".to_owned(),
            What::Wrote { wiped } => format!("writes: accepted, wipes out {wiped} of others"),
            What::Refused { act, why } => format!("{act} refused by the gate: {why}"),
            What::Fault { text, .. } => text.clone(),
            What::Worked { rounds, took_ns } => {
                format!("took it {rounds} times in {} ms", took_ns / 1_000_000)
            }
            What::Failed { why } => format!("cannot go on: {why}"),
        }
    }
}
