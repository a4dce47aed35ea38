//! Whether the logs of the cell have room for more (S11). What is left is kept for releases and for the end of sessions.

use crate::raft::Consensus;
use crate::raft::log::LogStore;
use crate::shared::Shared;

/// This much is kept at least, in this node's log and in those of a majority.
const RESERVED_BYTES: u64 = 5 << 20;
/// What it takes to end one grant, one session or one wait, with the frames around it.
const BYTES_TO_END_ONE: u64 = 192;
/// More cannot be kept: it is noticed that there is no room when a segment of 16 MiB begins.
const RESERVED_BYTES_MAX: u64 = 12 << 20;

/// Looks at the room in the logs. While it is short, nothing new is taken in; when there is room again, everything goes on by
/// itself.
pub(crate) fn check(shared: &Shared, consensus: &Consensus, log: &LogStore) {
    shared.queue.refuse_new(shortage(shared, consensus, log));
}

/// Why nothing new is taken in, if so.
fn shortage(shared: &Shared, consensus: &Consensus, log: &LogStore) -> Option<String> {
    let space = log.space();
    if space.trouble.is_none() && !consensus.has_reports_of_shortage() {
        return None;
    }
    let reserved = reserved_bytes(shared);
    let own = space.trouble.filter(|_| space.current_bytes + space.next_bytes < reserved);
    let why = match own {
        Some(error) => error.while_it_is_tried_again(),
        None => {
            let nodes = consensus.majority_lacks_space(reserved)?;
            format!("no space left on the disks of nodes {nodes:?}: free some, and it goes on by itself")
        }
    };
    Some(format!("nothing new is granted for now, releases still work: {why}"))
}

/// Enough to end everything that there is.
fn reserved_bytes(shared: &Shared) -> u64 {
    let counts = shared.table().counts();
    let things = counts.grants + counts.sessions + counts.waiting;
    RESERVED_BYTES.max(things * BYTES_TO_END_ONE).min(RESERVED_BYTES_MAX)
}
