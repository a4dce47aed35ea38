//! Raft's view of itself and the cell, without openraft's types.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::metrics::RaftMetrics;
use openraft::{Instant as _, ServerState};

use super::types::{Member, TypeConfig};

/// Raft's view of itself and the cell.
#[derive(Debug, Clone, Default)]
pub struct RaftStatus {
    /// ID of the leader.
    pub leader: Option<u64>,
    /// Client address of the leader.
    pub leader_address: Option<String>,
    /// Whether raft considers this node the leader.
    pub leads: bool,
    /// Current term.
    pub term: u64,
    /// Index of the last entry in the log.
    pub last_log: u64,
    /// Index of the last entry applied.
    pub applied: u64,
    /// Index of the last entry that the snapshot covers.
    pub snapshot: u64,
    /// Index of the last entry that was removed from the log.
    pub purged: u64,
    /// The members.
    pub members: Vec<MemberStatus>,
    /// Why raft has stopped, if it has.
    pub stopped: Option<String>,
}

/// Status of one member.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Its ID.
    pub node_id: u64,
    /// Its addresses and data folder.
    pub member: Member,
    /// Whether it is a voter; otherwise it is a learner.
    pub voter: bool,
    /// On the leader: index of the last entry that it has.
    pub matched: Option<u64>,
    /// On the leader: time since its last answer.
    pub silent_ms: Option<u64>,
    /// Measured round trip from this node.
    pub round_trip: Option<Duration>,
}

pub(super) fn of(m: &RaftMetrics<TypeConfig>, round_trips: &BTreeMap<u64, Duration>) -> RaftStatus {
    let voters: Vec<u64> = m.membership_config.membership().voter_ids().collect();
    let last_log = m.last_log_index.unwrap_or(0);
    let members: Vec<MemberStatus> =
        m.membership_config
            .nodes()
            .map(|(id, member)| {
                let is_self = *id == m.id;
                let matched =
                    m.replication.as_ref().and_then(|all| all.get(id)).map(|last| {
                        if is_self { last_log } else { last.as_ref().map_or(0, |last| last.index) }
                    });
                let silent = m
                    .heartbeat
                    .as_ref()
                    .and_then(|all| all.get(id))
                    .and_then(|heard| heard.map(|heard| heard.into_inner().elapsed().as_millis() as u64));
                MemberStatus {
                    node_id: *id,
                    member: member.clone(),
                    voter: voters.contains(id),
                    matched,
                    silent_ms: if is_self { matched.map(|_| 0) } else { silent },
                    round_trip: round_trips.get(id).copied(),
                }
            })
            .collect();
    RaftStatus {
        leader: m.current_leader,
        leader_address: m
            .current_leader
            .and_then(|leader| members.iter().find(|member| member.node_id == leader))
            .map(|member| member.member.client.clone()),
        leads: m.state == ServerState::Leader,
        term: m.current_term,
        last_log,
        applied: m.last_applied.map_or(0, |id| id.index),
        snapshot: m.snapshot.map_or(0, |id| id.index),
        purged: m.purged.map_or(0, |id| id.index),
        members,
        stopped: m.running_state.as_ref().err().map(ToString::to_string),
    }
}

/// Progress of the followers, on the leader.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Number of voters, including this node.
    pub(crate) voters: usize,
    /// The other voters. Empty on a follower.
    pub(crate) followers: Vec<FollowerProgress>,
}

/// Progress of one follower.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowerProgress {
    pub(crate) node_id: u64,
    /// Number of the leader's entries that it has not acknowledged.
    pub(crate) lag: u64,
    /// Whether it has not answered recently.
    pub(crate) is_silent: bool,
}

/// Returns the progress of the followers. One that has not answered for `silence` counts as silent.
pub(super) fn progress(m: &RaftMetrics<TypeConfig>, silence: Duration) -> Progress {
    let mut progress = Progress::default();
    let Some(replication) = &m.replication else { return progress };
    let last_log = m.last_log_index.unwrap_or(0);
    let heard = m.heartbeat.as_ref();
    for node_id in m.membership_config.membership().voter_ids() {
        progress.voters += 1;
        if node_id == m.id {
            continue;
        }
        let matched = replication.get(&node_id).and_then(|last| last.as_ref()).map_or(0, |last| last.index);
        let heard = heard.and_then(|heard| heard.get(&node_id)).and_then(|heard| heard.as_ref());
        let is_silent = heard.is_none_or(|heard| heard.elapsed() > silence);
        progress.followers.push(FollowerProgress {
            node_id,
            lag: last_log.saturating_sub(matched),
            is_silent,
        });
    }
    progress
}
