//! The state of the node and its cell.

use lockkeeper_api::status::{Disagreement, Member, Status, TableHash};

use super::Api;
use crate::failure::Failure;
use crate::raft::{self, MemberStatus};

impl Api {
    /// Returns the state of the node and its cell.
    pub fn status(&self) -> Status {
        let consensus = self.consensus();
        let raft = consensus.status();
        let timing = consensus.timing();
        let shared = self.shared();
        let table = shared.table();
        let counts = table.counts();
        let now = shared.leader_term.now().unwrap_or_else(|_| table.now());
        let member = |known| member(known, raft.last_log, |id| consensus.disagreement_of(id));
        Status {
            node_id: self.home().identity().node_id,
            cell: self.home().cell().unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leader: raft.leader,
            term: raft.term,
            members: raft.members.into_iter().map(member).collect(),
            last_log_index: raft.last_log,
            applied_index: raft.applied,
            snapshot_index: raft.snapshot,
            purged_index: raft.purged,
            sessions: counts.sessions,
            locks_held: counts.grants,
            waiting: counts.waiting,
            values: counts.values,
            last_token: table.last_token().0,
            cell_time_ms: now.0 / 1_000,
            uptime_ms: shared.started.elapsed().as_millis() as u64,
            unix_ms: lockkeeper_net::utc::now_ms(),
            cell_version: table.cell_version().0,
            cell_version_max: table.supported().0,
            heartbeat_ms: timing.heartbeat.as_millis() as u64,
            election_timeout_ms: timing.election_max.as_millis() as u64,
            round_trip_max_ms: timing.round_trip_max().as_millis() as u64,
            table_hash: TableHash(table.hash()),
            table_hash_index: table.applied(),
            disagreement: consensus.stopped_by_disagreement().map(disagreement),
            state_bytes: table.state_bytes(),
            state_bytes_max: table.state_bytes_max(),
            trouble: shared.queue.trouble(),
        }
    }

    /// Checks that the node leads and serves, or returns the reason why not.
    pub fn ready(&self) -> Result<(), Failure> {
        if let Some(why) = self.consensus().status().stopped {
            return Err(Failure::Unavailable(why));
        }
        if let Some(found) = self.consensus().stopped_by_disagreement() {
            return Err(Failure::Unavailable(format!(
                "the lock table of this node differs from the majority's, so it does not serve: {found}"
            )));
        }
        self.shared().leader_term.now().map(|_| ())
    }

    /// Returns the role of a node that can serve: it leads, or it knows the leader and redirects callers to it. Followers
    /// count as ready, because otherwise a rolling restart of a cell would wait forever for all but one of them.
    pub fn role(&self) -> Result<&'static str, Failure> {
        match self.ready() {
            Ok(()) => Ok("leader"),
            Err(Failure::NotLeader { leader: Some(_) }) => Ok("follower"),
            Err(failure) => Err(failure),
        }
    }
}

fn member(known: MemberStatus, last_log: u64, differs: impl Fn(u64) -> Option<raft::Disagreement>) -> Member {
    Member {
        node_id: known.node_id,
        address: known.member.client,
        peer_address: known.member.peer,
        voter: known.voter,
        matched_index: known.matched,
        lag: known.matched.map(|matched| last_log.saturating_sub(matched)),
        silent_ms: known.silent_ms,
        round_trip_us: known.round_trip.map(|round_trip| round_trip.as_micros() as u64),
        disagreement: differs(known.node_id).map(disagreement),
    }
}

fn disagreement(found: raft::Disagreement) -> Disagreement {
    Disagreement { index: found.index, own_hash: TableHash(found.own), other_hash: TableHash(found.other) }
}
