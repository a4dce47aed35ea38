//! What clients have seen, with times of one monotonic clock.

use std::time::Duration;

/// Everything that all clients have seen.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Grants.
    pub grants: Vec<Grant>,
    /// For how long clients have relied on them.
    pub holds: Vec<Hold>,
    /// Values that were written, or may have been.
    pub writes: Vec<Write>,
    /// Values that were read.
    pub reads: Vec<Read>,
    /// Which token answered which request.
    pub answered: Vec<Answered>,
    /// Queues that somebody has looked at.
    pub queues: Vec<Queue>,
    /// Locks that were given back.
    pub releases: Vec<Release>,
    /// What clients were told about grants that they had lost.
    pub losses: Vec<Loss>,
    /// Requests that were sent again after they had been refused.
    pub repeats: Vec<Repeat>,
    /// What was left in the end, when every client had given back everything and gone.
    pub left: Vec<Left>,
}

/// An acquire that was answered with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Who got it.
    pub client: u32,
    /// For which lock.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// When it was asked for.
    pub asked: Duration,
    /// When the answer was there.
    pub answered: Duration,
}

/// A time in which a client that honours its deadline was sure to hold a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Who.
    pub client: u32,
    /// What.
    pub lock: String,
    /// By which token.
    pub token: u64,
    /// The answer was there.
    pub from: Duration,
    /// The last moment at which its deadline had not passed and it had not begun to release it.
    pub until: Duration,
}

/// A write of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Which value.
    pub key: String,
    /// Its content, different for each write.
    pub value: String,
    /// The token under which it was written.
    pub token: u64,
    /// The version it got; `None` if the answer was lost and it may have happened.
    pub version: Option<u64>,
    /// When it was asked for.
    pub asked: Duration,
    /// When the answer was there.
    pub answered: Duration,
}

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Which value.
    pub key: String,
    /// Its content; empty if there was none.
    pub value: String,
    /// Its version; 0 if there was none.
    pub version: u64,
    /// When it was asked for.
    pub asked: Duration,
    /// When the answer was there.
    pub answered: Duration,
}

/// A request, by a name that no other has, and the token that it got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The request.
    pub request: String,
    /// The token.
    pub token: u64,
}

/// The requests in the queue of a lock, in their order, as seen at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// The lock.
    pub lock: String,
    /// When it was seen.
    pub seen: Duration,
    /// The requests by name, the next one first.
    pub requests: Vec<String>,
}

/// A lock that was given back, or was not held any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The lock.
    pub lock: String,
    /// By which token it was held.
    pub token: u64,
    /// When it was asked for.
    pub asked: Duration,
    /// When the answer was there.
    pub answered: Duration,
}

/// A client was told that a grant is no longer its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Who.
    pub client: u32,
    /// What.
    pub lock: String,
    /// By which token it was held.
    pub token: u64,
    /// When it was told.
    pub told: Duration,
    /// Until when it had been promised.
    pub promised: Duration,
    /// What it was told.
    pub why: String,
}

/// A late copy of a request that the lock table had refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    /// Who.
    pub client: u32,
    /// Which lock was asked for.
    pub lock: String,
    /// The answer to the first copy.
    pub refusal: String,
    /// The token, if the late copy was granted.
    pub token: Option<u64>,
}

/// Somebody who holds a lock or waits for it although all clients are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The lock.
    pub lock: String,
    /// Who.
    pub owner: String,
    /// Waits, rather than holds.
    pub waits: bool,
}
