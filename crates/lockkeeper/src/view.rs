//! What people see: who holds a lock, who waits, how the cell is. They serialize as in the HTTP contract.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::mode::Mode;

/// One lock: who holds it, who waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockState {
    /// Its name.
    pub lock: String,
    /// How many permits it has.
    pub capacity: u32,
    /// The last token granted for it.
    pub last_token: u64,
    /// Those who hold it.
    pub holders: Vec<Holder>,
    /// The first of those who wait, in order; [`waiting`](Self::waiting) counts them all.
    pub queue: Vec<Waiter>,
    /// How many wait.
    pub waiting: u32,
    /// Still closed by a lock-delay for this long.
    #[serde(rename = "closed_ms", serialize_with = "as_ms")]
    pub closed: Duration,
}

/// One who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// Its session. A cell shows the first eight digits of the id: whoever knows a whole one can act in its name.
    pub session: String,
    /// Its token.
    pub token: u64,
    /// Alone or shared.
    pub mode: Mode,
    /// Who it is.
    pub owner: String,
    /// Since when.
    #[serde(rename = "held_ms", serialize_with = "as_ms")]
    pub held: Duration,
    /// How many permits it has taken.
    pub permits: u32,
    /// The scope it belongs to; empty if none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// In an election: what it announced.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// One who waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Waiter {
    /// Its session. A cell shows the first eight digits of the id: whoever knows a whole one can act in its name.
    pub session: String,
    /// Its place in the queue.
    pub position: u32,
    /// What it asks for.
    pub mode: Mode,
    /// Who it is.
    pub owner: String,
    /// Since when.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Duration,
    /// The scope it belongs to; empty if none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// In an election: what it stands for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// A page of locks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct LockPage {
    /// The locks, in order of name.
    pub locks: Vec<LockState>,
    /// There are more: ask again after the last name.
    pub more: bool,
}

/// Whether a token is still the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TokenCheck {
    /// It is held, and no later one was granted.
    pub valid: bool,
    /// The last token granted for the lock.
    pub last_token: u64,
}

/// What became of a lock that was freed by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForcedRelease {
    /// How many holders there were.
    pub holders: u32,
    /// The lock's last token, now above that of every former holder.
    pub last_token: u64,
}

/// How the cell is, as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Status {
    pub node_id: u64,
    pub cell: String,
    pub version: String,
    /// The leader's node id; 0 if none is known.
    pub leader: u64,
    pub term: u64,
    pub members: Vec<Member>,
    pub last_log_index: u64,
    pub applied_index: u64,
    pub snapshot_index: u64,
    pub purged_index: u64,
    pub sessions: u64,
    pub locks_held: u64,
    pub waiting: u64,
    pub values: u64,
    pub last_token: u64,
    pub cell_time_ms: u64,
    pub uptime_ms: u64,
    /// The node's own calendar clock; it decides nothing about locks.
    pub unix_ms: u64,
    /// Which commands and rules the cell uses.
    pub cell_version: u32,
    /// The highest cell version that the node supports.
    pub cell_version_max: u32,
    /// Between two heartbeats of a leader, as the node is set.
    pub heartbeat_ms: u64,
    pub election_timeout_ms: u64,
    /// The longest round trip between members that the node's timing is made for.
    pub round_trip_max_ms: u64,
    /// The hash of the node's lock table after `table_hash_index`, in hexadecimal digits: equal on all nodes.
    pub table_hash: String,
    pub table_hash_index: u64,
    /// The node's lock table differs from that of the majority, and it does not serve.
    pub disagreement: Option<String>,
    /// What the cell holds, in logical bytes.
    pub state_bytes: u64,
    /// The most that it may hold.
    pub state_bytes_max: u64,
    /// Why the node takes in nothing new, for example because disks are full. Empty if it does.
    pub trouble: String,
}

impl Status {
    /// The members whose round trip from the node that was asked is too long for its timing: leaders may change without need.
    pub fn too_far(&self) -> impl Iterator<Item = &Member> {
        let limit_us = self.round_trip_max_ms.saturating_mul(1_000);
        self.members.iter().filter(move |member| member.round_trip_us.is_some_and(|us| us > limit_us))
    }

    /// Why the cell is degraded, a sentence for each reason, as far as the node that was asked knows. Empty if it is healthy.
    pub fn degradations(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.leader == 0 {
            found.push("no leader is known: the cell cannot grant locks now".to_owned());
        }
        if let Some(differs) = &self.disagreement {
            found.push(format!(
                "node {} has another lock table than the majority and does not serve: {differs}",
                self.node_id
            ));
        }
        let down_after_ms = (4 * self.election_timeout_ms).max(2_000);
        for member in &self.members {
            if let Some(differs) = &member.disagreement {
                found.push(format!("the lock table of node {} differs: {differs}", member.node_id));
            }
            if let Some(silent_ms) = member.silent_ms.filter(|silent| member.voter && *silent > down_after_ms)
            {
                found.push(format!("node {} has not answered for {} s", member.node_id, silent_ms / 1_000));
            }
        }
        if !self.trouble.is_empty() {
            found.push(self.trouble.clone());
        }
        found
    }
}

/// A node of the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Where clients reach it.
    pub address: String,
    /// Where the other members reach it.
    pub peer_address: String,
    /// It votes.
    pub voter: bool,
    /// The last entry that it has; known if the node that was asked leads.
    pub matched_index: Option<u64>,
    /// How many entries it lacks; known if the node that was asked leads.
    pub lag: Option<u64>,
    /// For how long it has not answered; known if the node that was asked leads.
    pub silent_ms: Option<u64>,
    /// The measured round trip from the node that was asked; none for itself, and before it is known.
    pub round_trip_us: Option<u64>,
    /// Its lock table differs from that of the node that was asked; known if that one leads.
    pub disagreement: Option<String>,
}

fn as_ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
