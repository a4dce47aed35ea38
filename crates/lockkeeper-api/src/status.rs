//! The state of a node and its cell, and the members.

use std::fmt;

use lockkeeper_core::Refusal;
use serde::{Deserialize, Serialize, Serializer};

use crate::request::{Answer, Call, Request};
use crate::v1;
use crate::wire::{Wire, answers, mirror};

/// The hash of a lock table. In JSON it is text: JSON numbers are not exact above 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableHash(pub u64);

impl fmt::Display for TableHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TableHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Wire<u64> for TableHash {
    fn into_wire(self) -> u64 {
        self.0
    }
    fn from_wire(wire: u64) -> TableHash {
        TableHash(wire)
    }
}

/// A difference between two lock tables that should be equal. In JSON it is a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disagreement {
    /// The entry after which it was detected.
    pub index: u64,
    /// The hash of the answering node's table.
    pub own_hash: TableHash,
    /// The hash of the other table.
    pub other_hash: TableHash,
}

mirror!(Disagreement = v1::Disagreement { index, own_hash, other_hash });

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Disagreement { index, own_hash, other_hash } = self;
        write!(f, "after entry {index} the lock table has hash {own_hash} here and {other_hash} there")
    }
}

impl Serialize for Disagreement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The status of the cell, as seen by one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// The node that answers.
    pub node_id: u64,
    /// The name of its cell.
    pub cell: String,
    /// The version of its binary.
    pub version: String,
    /// The leader; null if unknown.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// The members of the cell.
    pub members: Vec<Member>,
    /// The last entry in its log.
    pub last_log_index: u64,
    /// The last entry that it has applied.
    pub applied_index: u64,
    /// The last entry that its snapshot covers.
    pub snapshot_index: u64,
    /// The last entry that is no longer in its log.
    pub purged_index: u64,
    /// Live sessions.
    pub sessions: u64,
    /// Grants.
    pub locks_held: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Values.
    pub values: u64,
    /// The last token granted.
    pub last_token: u64,
    /// Cell time, which is not a wall clock.
    pub cell_time_ms: u64,
    /// How long the process has run.
    pub uptime_ms: u64,
    /// The node's wall clock, in milliseconds since 1970 UTC; never used for decisions about locks.
    pub unix_ms: u64,
    /// The version of the cell's commands and rules.
    pub cell_version: u32,
    /// The highest cell version that the node supports.
    pub cell_version_max: u32,
    /// The configured interval between heartbeats of a leader.
    pub heartbeat_ms: u64,
    /// The configured time without a message from the leader after which an election starts.
    pub election_timeout_ms: u64,
    /// The longest round trip between members that the node's timing allows.
    pub round_trip_max_ms: u64,
    /// The hash of the node's lock table after `table_hash_index`, in hexadecimal: equal on all nodes.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub table_hash: TableHash,
    /// The entry that the hash belongs to.
    pub table_hash_index: u64,
    /// Set if the node's lock table differs from the majority's; then it does not serve.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub disagreement: Option<Disagreement>,
    /// The size of the cell's state in logical bytes.
    pub state_bytes: u64,
    /// The maximum size of the cell's state.
    pub state_bytes_max: u64,
    /// Why the node accepts no new requests, for example because disks are full; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A member of the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Its address for clients.
    pub address: String,
    /// Its address for other members.
    pub peer_address: String,
    /// Whether it votes; otherwise it is a learner.
    pub voter: bool,
    /// The last entry that it has; known only to the leader.
    pub matched_index: Option<u64>,
    /// The number of entries that it lacks; known only to the leader.
    pub lag: Option<u64>,
    /// How long it has not answered; known only to the leader.
    pub silent_ms: Option<u64>,
    /// The measured round trip from the answering node; null for itself, and until it is known.
    pub round_trip_us: Option<u64>,
    /// Set if its lock table differs from the answering node's; known only to the leader.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub disagreement: Option<Disagreement>,
}

mirror!(
    Status = v1::StatusResponse {
        node_id,
        cell,
        version,
        leader,
        term,
        members,
        last_log_index,
        applied_index,
        snapshot_index,
        purged_index,
        sessions,
        locks_held,
        waiting,
        values,
        last_token,
        cell_time_ms,
        uptime_ms,
        unix_ms,
        cell_version,
        cell_version_max,
        heartbeat_ms,
        election_timeout_ms,
        round_trip_max_ms,
        table_hash,
        table_hash_index,
        disagreement,
        state_bytes,
        state_bytes_max,
        trouble
    }
);
mirror!(
    Member = v1::Member {
        node_id,
        address,
        peer_address,
        voter,
        matched_index,
        lag,
        silent_ms,
        round_trip_us,
        disagreement
    }
);

impl Status {
    /// The members whose round trip from the answering node is too long for its timing, which may cause needless leader
    /// changes.
    pub fn too_far(&self) -> impl Iterator<Item = &Member> {
        let limit_us = self.round_trip_max_ms.saturating_mul(1_000);
        self.members.iter().filter(move |member| member.round_trip_us.is_some_and(|us| us > limit_us))
    }

    /// The reasons why the cell is degraded, one sentence each, as far as the answering node knows. Empty if it is
    /// healthy.
    pub fn degradations(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.leader.is_none() {
            found.push("no leader is known: the cell cannot grant locks now".to_owned());
        }
        if let Some(differs) = &self.disagreement {
            found.push(format!(
                "the lock table of node {} differs from the majority's, and it does not serve: {differs}",
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
        found.extend(self.trouble.clone());
        found
    }
}

/// Request for the status of the node and its cell.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetStatus {}

impl Call for GetStatus {
    type Answer = Status;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Status)
    }
}

impl From<v1::StatusRequest> for Request {
    fn from(_: v1::StatusRequest) -> Request {
        Request::Status
    }
}

/// Request for the members.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListMembers {}

/// The members of the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Members {
    /// The members.
    pub members: Vec<Member>,
}

mirror!(Members = v1::MembersResponse { members });

impl Call for ListMembers {
    type Answer = Members;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Members)
    }
}

impl From<v1::ListMembersRequest> for Request {
    fn from(_: v1::ListMembersRequest) -> Request {
        Request::Members
    }
}

/// Request to add a node that runs with an empty data folder. It receives all data first, then it votes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddMember {
    /// Its id.
    pub node_id: u64,
    /// The host:port at which the node answers.
    pub address: String,
}

impl Call for AddMember {
    type Answer = Members;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"node_id": 4, "address": "10.0.0.4:7420"}"#,
        r#"{"members": [{"node_id": 1, "address": "10.0.0.1:7420", "peer_address": "10.0.0.1:7420",
        "voter": true, "matched_index": 9, "lag": 0, "silent_ms": 0, "round_trip_us": null, "disagreement": null}]}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::AddMember { node_id: self.node_id, address: self.address })
    }
}

impl From<v1::AddMemberRequest> for Request {
    fn from(request: v1::AddMemberRequest) -> Request {
        Request::AddMember { node_id: request.node_id, address: request.address }
    }
}

/// Request to remove a member permanently.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RemoveMember {
    /// Its id.
    pub node_id: u64,
}

impl Call for RemoveMember {
    type Answer = Members;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"node_id": 2}"#,
        r#"{"members": [{"node_id": 1, "address": "10.0.0.1:7420", "peer_address": "10.0.0.1:7420",
        "voter": true, "matched_index": 9, "lag": 0, "silent_ms": 0, "round_trip_us": null, "disagreement": null}]}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::RemoveMember { node_id: self.node_id })
    }
}

impl From<v1::RemoveMemberRequest> for Request {
    fn from(request: v1::RemoveMemberRequest) -> Request {
        Request::RemoveMember { node_id: request.node_id }
    }
}

/// Whether a node is alive or ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Health {
    /// Always `ok`; anything else is an error response.
    pub status: &'static str,
    /// The basis of readiness, if the query contains `verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<HealthChecks>,
}

/// The basis of readiness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HealthChecks {
    /// `leader` or `follower`.
    pub role: &'static str,
    /// The leader.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// The last entry that the node has applied.
    pub applied_index: u64,
    /// The last entry in its log.
    pub last_log_index: u64,
}

/// The version of the software of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Version {
    /// `lockkeeper`.
    pub name: &'static str,
    /// The version of the binary.
    pub version: &'static str,
    /// The version of this interface.
    pub api: &'static str,
}

answers! {
    Answer::Status(status) => Status as *status;
    Answer::Members(members) => Members as members;
    Answer::Status(status) => v1::StatusResponse as (*status).into();
    Answer::Members(members) => v1::MembersResponse as members.into();
}
