//! The health of the cell, as this node sees it.

use serde::Serialize;

use super::audit::LeaderChange;
use super::disk::Disk;
use super::top::Top;
use crate::calls::Calls;
use crate::wire;

/// Elections shown.
const ELECTIONS: usize = 50;
/// Locks shown in each list.
const LOCKS: usize = 5;

/// The health of the cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellHealth {
    cell: String,
    version: String,
    cell_version: u32,
    members: Vec<Member>,
    last_log_index: u64,
    applied_index: u64,
    snapshot_index: u64,
    sessions: u64,
    locks: u64,
    locks_held: u64,
    waiting: u64,
    values: u64,
    last_token: u64,
    uptime_s: u64,
    /// What the cell holds, in logical bytes, and the most that it may hold.
    state_bytes: u64,
    state_bytes_max: u64,
    /// This node's lock table differs from that of the majority.
    disagreement: Option<String>,
    /// Commands in front of the log.
    queued: u64,
    /// Why nothing new is taken in, if so.
    trouble: Option<String>,
    /// Nothing if everything is in memory.
    disk: Option<Disk>,
    elections: Vec<LeaderChange>,
    /// Without names for those who may not read all locks.
    top: Top,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Member {
    node_id: u64,
    address: String,
    voter: bool,
    lag: Option<u64>,
    silent_ms: Option<u64>,
    disagreement: Option<String>,
}

impl Calls {
    /// The health of the cell. The room on the disk is looked at by the caller, because that takes a moment.
    pub fn cell_health(&self, disk: Option<Disk>) -> CellHealth {
        let status = self.status();
        let shared = self.shared();
        let names_locks = self.may_see_all();
        let look = self.look_here();
        let mut top = look.top(&shared.hourly_stats, LOCKS);
        if !names_locks {
            top.contended.clear();
            top.longest_held.clear();
        }
        CellHealth {
            cell: status.cell,
            version: status.version,
            cell_version: status.cell_version,
            members: status
                .members
                .into_iter()
                .map(|member| Member {
                    node_id: member.node_id,
                    address: member.address,
                    voter: member.voter,
                    lag: member.lag,
                    silent_ms: member.silent_ms,
                    disagreement: member.disagreement.as_ref().map(wire::disagreement_text),
                })
                .collect(),
            last_log_index: status.last_log_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            sessions: status.sessions,
            locks: look.table.counts().locks,
            locks_held: status.locks_held,
            waiting: status.waiting,
            values: status.values,
            last_token: status.last_token,
            uptime_s: status.uptime_ms / 1_000,
            state_bytes: status.state_bytes,
            state_bytes_max: status.state_bytes_max,
            disagreement: status.disagreement.as_ref().map(wire::disagreement_text),
            queued: shared.proposer.queued() as u64,
            trouble: shared.proposer.trouble(),
            disk,
            elections: look.audit(ELECTIONS).leaders,
            top,
        }
    }
}
