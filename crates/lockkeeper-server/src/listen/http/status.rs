//! The state of the node and its cell, for people, scripts and probes.

use axum::Json;
use axum::http::{StatusCode, Uri};
use serde::Serialize;

use super::error::Error;
use super::on_behalf::OnBehalf;
use crate::failure::Failure;
use crate::wire;

#[derive(Serialize)]
pub(super) struct Status {
    node_id: u64,
    cell: String,
    version: String,
    /// Null while nobody leads, as far as this node knows.
    leader: Option<u64>,
    term: u64,
    members: Vec<Member>,
    last_log_index: u64,
    applied_index: u64,
    snapshot_index: u64,
    purged_index: u64,
    sessions: u64,
    locks_held: u64,
    waiting: u64,
    values: u64,
    last_token: u64,
    cell_time_ms: u64,
    uptime_ms: u64,
    /// Which commands and rules the cell uses, and the highest version that this node supports.
    cell_version: u32,
    cell_version_max: u32,
    heartbeat_ms: u64,
    election_timeout_ms: u64,
    /// The longest round trip between members that this timing is made for.
    round_trip_max_ms: u64,
    /// As text: JSON numbers are not exact above 2^53.
    table_hash: String,
    table_hash_index: u64,
    disagreement: Option<String>,
    state_bytes: u64,
    state_bytes_max: u64,
    /// Why the node takes in nothing new, if so.
    #[serde(skip_serializing_if = "String::is_empty")]
    trouble: String,
}

#[derive(Serialize)]
pub(super) struct Member {
    node_id: u64,
    address: String,
    peer_address: String,
    voter: bool,
    /// The leader alone knows these of the others.
    matched_index: Option<u64>,
    lag: Option<u64>,
    silent_ms: Option<u64>,
    /// Measured from this node.
    round_trip_us: Option<u64>,
    disagreement: Option<String>,
}

impl From<lockkeeper_api::v1::Member> for Member {
    fn from(member: lockkeeper_api::v1::Member) -> Member {
        Member {
            node_id: member.node_id,
            address: member.address,
            peer_address: member.peer_address,
            voter: member.voter,
            matched_index: member.matched_index,
            lag: member.lag,
            silent_ms: member.silent_ms,
            round_trip_us: member.round_trip_us,
            disagreement: member.disagreement.as_ref().map(wire::disagreement_text),
        }
    }
}

pub(super) async fn status(OnBehalf(calls): OnBehalf) -> Result<Json<Status>, Error> {
    calls.must_be_known()?;
    let status = calls.status();
    Ok(Json(Status {
        node_id: status.node_id,
        cell: status.cell,
        version: status.version,
        leader: (status.leader != 0).then_some(status.leader),
        term: status.term,
        members: status.members.into_iter().map(Member::from).collect(),
        last_log_index: status.last_log_index,
        applied_index: status.applied_index,
        snapshot_index: status.snapshot_index,
        purged_index: status.purged_index,
        sessions: status.sessions,
        locks_held: status.locks_held,
        waiting: status.waiting,
        values: status.values,
        last_token: status.last_token,
        cell_time_ms: status.cell_time_ms,
        uptime_ms: status.uptime_ms,
        cell_version: status.cell_version,
        cell_version_max: status.cell_version_max,
        heartbeat_ms: status.heartbeat_ms,
        election_timeout_ms: status.election_timeout_ms,
        round_trip_max_ms: status.round_trip_max_ms,
        table_hash: format!("{:016x}", status.table_hash),
        table_hash_index: status.table_hash_index,
        disagreement: status.disagreement.as_ref().map(wire::disagreement_text),
        state_bytes: status.state_bytes,
        state_bytes_max: status.state_bytes_max,
        trouble: status.trouble,
    }))
}

#[derive(Serialize)]
pub(super) struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<Checks>,
}

/// What readiness was decided by.
#[derive(Serialize)]
struct Checks {
    role: &'static str,
    leader: Option<u64>,
    term: u64,
    applied_index: u64,
    last_log_index: u64,
}

/// The process runs and answers. Whether it can serve is another question: restarting it would not help.
pub(super) async fn alive() -> Json<Health> {
    Json(Health { status: "ok", checks: None })
}

/// The node can serve.
pub(super) async fn ready(OnBehalf(calls): OnBehalf, uri: Uri) -> Result<Json<Health>, Error> {
    let role = calls.role().map_err(|failure| {
        let why = Failure::Unavailable(format!("not ready: {failure}"));
        Error::from(why).with_status(StatusCode::SERVICE_UNAVAILABLE)
    })?;
    let verbose = uri.query().is_some_and(|query| query.split('&').any(|word| word.starts_with("verbose")));
    let checks = verbose.then(|| {
        let status = calls.status();
        Checks {
            role,
            leader: (status.leader != 0).then_some(status.leader),
            term: status.term,
            applied_index: status.applied_index,
            last_log_index: status.last_log_index,
        }
    });
    Ok(Json(Health { status: "ok", checks }))
}

#[derive(Serialize)]
pub(super) struct Version {
    name: &'static str,
    version: &'static str,
    api: &'static str,
}

pub(super) async fn version() -> Json<Version> {
    Json(Version { name: "lockkeeper", version: env!("CARGO_PKG_VERSION"), api: "v1" })
}
