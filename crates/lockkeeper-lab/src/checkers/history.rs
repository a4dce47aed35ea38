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
