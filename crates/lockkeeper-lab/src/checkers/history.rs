//! The observations of clients, timed by one monotonic clock.

use std::time::Duration;

/// The observations of all clients.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Grants.
    pub grants: Vec<Grant>,
    /// Intervals in which clients relied on a grant.
    pub holds: Vec<Hold>,
    /// Writes, including those with an unknown outcome.
    pub writes: Vec<Write>,
    /// Reads.
    pub reads: Vec<Read>,
    /// Granted requests and their tokens.
    pub granted_requests: Vec<GrantedRequest>,
    /// Observed queues.
    pub queues: Vec<Queue>,
    /// Acknowledged releases.
    pub releases: Vec<Release>,
    /// Reported losses of grants.
    pub losses: Vec<Loss>,
    /// Late copies of refused requests.
    pub repeats: Vec<Repeat>,
    /// Cell times of leaders, in the order of their observation.
    pub leader_times: Vec<LeaderTime>,
    /// Holders and waiters that remain after all clients are gone.
    pub left: Vec<Leftover>,
}

/// A granted acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The client.
    pub client: u32,
    /// The lock.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// When the request was sent.
    pub invoked: Duration,
    /// When the answer arrived.
    pub returned: Duration,
}

/// An interval in which a client that honours its deadline was certain to hold a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The client.
    pub client: u32,
    /// The lock.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// When the answer arrived.
    pub from: Duration,
    /// The last time before its deadline and before it began to release.
    pub until: Duration,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// The content, unique for each write.
    pub value: String,
    /// The token under which it was written.
    pub token: u64,
    /// The new version; `None` if the outcome is unknown.
    pub version: Option<u64>,
    /// When the request was sent.
    pub invoked: Duration,
    /// When the answer arrived.
    pub returned: Duration,
}

/// A read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The key.
    pub key: String,
    /// The content; empty if there was no value.
    pub value: String,
    /// The version; 0 if there was no value.
    pub version: u64,
    /// When the request was sent.
    pub invoked: Duration,
    /// When the answer arrived.
    pub returned: Duration,
}

/// A granted request with a unique name, and its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedRequest {
    /// The request.
    pub request: String,
    /// The token.
    pub token: u64,
}

/// The queue of a lock at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// The lock.
    pub lock: String,
    /// When it was observed.
    pub seen: Duration,
    /// The names of the requests, the next one first.
    pub requests: Vec<String>,
}

/// An acknowledged release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The lock.
    pub lock: String,
    /// The token of the grant.
    pub token: u64,
    /// When the request was sent.
    pub invoked: Duration,
    /// When the answer arrived.
    pub returned: Duration,
}

/// A reported loss of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The client.
    pub client: u32,
    /// The lock.
    pub lock: String,
    /// The token of the grant.
    pub token: u64,
    /// When it was reported.
    pub told_at: Duration,
    /// The promised end of the lease.
    pub promised: Duration,
    /// The reported reason.
    pub why: String,
}

/// A late copy of a refused request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    /// The client.
    pub client: u32,
    /// The lock.
    pub lock: String,
    /// The answer to the first copy.
    pub refusal: String,
    /// The token, if the late copy was granted.
    pub token: Option<u64>,
}

/// The cell time of a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderTime {
    /// The leader.
    pub node: u32,
    /// Its cell time.
    pub cell_time_ms: u64,
    /// When it was observed.
    pub seen: Duration,
}

/// A holder or waiter that remains although all clients are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The lock.
    pub lock: String,
    /// The client.
    pub owner: String,
    /// Whether it waits instead of holding.
    pub waits: bool,
}
