//! Free space in the logs of the cell (S11). The last of it is reserved for releases and the end of sessions.

use crate::raft::Consensus;
use crate::raft::log::LogStore;
use crate::shared::Shared;

/// Least reserve in this node's log and in the logs of a majority.
const RESERVED_BYTES: u64 = 5 << 20;
/// Log bytes needed to end one grant, one session or one wait, including framing.
const BYTES_TO_END_ONE: u64 = 192;
/// Largest reserve: a shortage is noticed only when a segment of 16 MiB begins.
const RESERVED_BYTES_MAX: u64 = 12 << 20;

/// Checks the free space in the logs. While it is short, the queue accepts only releasing commands; once there is space
/// again, it accepts all.
pub(crate) fn check(shared: &Shared, consensus: &Consensus, log: &LogStore) {
    shared.queue.refuse_new(shortage(shared, consensus, log));
}

/// Returns why the space is short, if it is.
fn shortage(shared: &Shared, consensus: &Consensus, log: &LogStore) -> Option<String> {
    let space = log.space();
    if space.trouble.is_none() && !consensus.has_reports_of_shortage() {
        return None;
    }
    let reserved = reserved_bytes(shared);
    let own = space.trouble.filter(|_| space.current_bytes + space.next_bytes < reserved);
    let why = match own {
        Some(error) => error.retry_message(),
        None => {
            let nodes = consensus.majority_lacks_space(reserved)?;
            format!(
                "no space left on the disks of nodes {nodes:?}: free some space, and writes resume by themselves"
            )
        }
    };
    Some(format!("new grants and writes are refused, releases still work: {why}"))
}

/// Returns the log bytes needed to end every grant, session and wait.
fn reserved_bytes(shared: &Shared) -> u64 {
    let counts = shared.table().counts();
    let things = counts.grants + counts.sessions + counts.waiting;
    RESERVED_BYTES.max(things * BYTES_TO_END_ONE).min(RESERVED_BYTES_MAX)
}
