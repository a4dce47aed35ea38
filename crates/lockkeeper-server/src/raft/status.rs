//! What raft knows about itself and the cell, in our words.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::metrics::RaftMetrics;
use openraft::{Instant as _, ServerState};

use super::types::{Member, TypeConfig};

/// What raft knows about itself and the cell.
#[derive(Debug, Clone, Default)]
pub struct RaftStatus {
    /// The leader's id.
    pub leader: Option<u64>,
    /// The leader's address.
    pub leader_address: Option<String>,
    /// Whether this node leads, by raft's own account.
    pub leads: bool,
    /// The term.
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

/// One member.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Its id.
    pub node_id: u64,
    /// Where it is.
    pub member: Member,
    /// Whether it votes; otherwise it only learns.
    pub voter: bool,
    /// On the leader: the last entry that it has.
    pub matched: Option<u64>,
    /// On the leader: for how long it has not answered.
    pub silent_ms: Option<u64>,
    /// The measured round trip from this node.
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

/// How far the followers are, on the leader.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// How many members vote, this node included.
    pub(crate) voters: usize,
    /// The voters but for this node. Empty on a follower.
    pub(crate) followers: Vec<FollowerProgress>,
}

/// How far one of them is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowerProgress {
    pub(crate) node_id: u64,
    /// How many entries of the leader it has not acknowledged.
    pub(crate) lag: u64,
    /// Whether it has acknowledged nothing at all lately.
    pub(crate) is_silent: bool,
}

/// Whoever has not answered for `silence` is silent.
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
