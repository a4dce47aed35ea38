//! Free space in the logs of the cell (S11). While it is short, it is kept for the entries that end what exists: releases, and
//! ends of sessions and waits.

use lockkeeper_core::{Command, Endings, Prospect};

use super::queue::Shortage;
use crate::effects::callers::Caller;
use crate::failure::Failure;
use crate::raft::Consensus;
use crate::raft::log::LogStore;
use crate::shared::Shared;

// The parts of a segment below are kept beyond the space that it takes to end everything.

/// New work is refused when less than this is left for everything else: deletions, changes by administrators, elections.
const ALLOWANCE_PART: u64 = 4;
/// Only commands that end something are accepted when less than this is left.
const LAST_PART: u64 = 16;
/// Once new work is refused, it is accepted again only if so much more is left, so that the state does not alternate.
const HYSTERESIS_PART: u64 = 8;

/// Checks the free space in the logs. While it is short, the queue accepts only releasing commands; once there is space
/// again, it accepts all. Returns whether the entry to be proposed next has to wait until no other is in flight: while disks
/// are full, the space that an entry may need is checked against a table that contains all entries before it.
pub(crate) fn check(shared: &Shared, consensus: &Consensus, log: &LogStore) -> bool {
    let needed = bytes_to_end(shared.table().endings());
    let space = log.space();
    log.keep_for_entries(needed + space.segment_bytes / ALLOWANCE_PART);
    let own_trouble = space.trouble.clone();
    if own_trouble.is_none() && !consensus.has_reports_of_shortage() {
        shared.queue.refuse_new(None);
        return false;
    }
    let mut enough = needed + space.segment_bytes / ALLOWANCE_PART + incoming_bytes(shared);
    if shared.queue.is_short() {
        enough += space.segment_bytes / HYSTERESIS_PART;
    }
    let last = needed + space.segment_bytes / LAST_PART;
    let room = space.entry_bytes();
    let is_tight = own_trouble.is_some() || consensus.majority_lacks_space(u64::MAX).is_some();
    let shortage = match own_trouble.filter(|_| room < enough) {
        Some(error) => {
            Some((error.retry_message(), room < last || consensus.majority_lacks_space(last).is_some()))
        }
        None => consensus.majority_lacks_space(enough).map(|nodes| {
            let why = format!(
                "no space left on the disks of nodes {nodes:?}: free some space, and writes resume by themselves"
            );
            (why, consensus.majority_lacks_space(last).is_some())
        }),
    };
    shared.queue.refuse_new(shortage.map(|(why, only_endings)| Shortage {
        why: format!("new grants and writes are refused, releases still work: {why}"),
        only_endings,
    }));
    is_tight
}

/// Returns the log bytes that it takes to end all this one by one.
fn bytes_to_end(endings: Endings) -> u64 {
    LogStore::bytes_for_lone_commands(endings.entries, endings.name_bytes)
}

/// Returns the log bytes of the next entry, and those that it takes to end what it may add.
fn incoming_bytes(shared: &Shared) -> u64 {
    let (bytes, endings) = shared.queue.next_entry_needs();
    bytes as u64 + bytes_to_end(endings)
}

/// Keeps only those commands of an entry that are worth space in the log, while it is short. Commands that would change
/// nothing get the answer that the table would give: otherwise any client could use up the space with releases of locks
/// that it does not hold. The caller makes sure that no entry is in flight, so the table contains everything that this leader
/// has proposed.
pub(super) fn keep_useful(
    shared: &Shared,
    consensus: &Consensus,
    commands: Vec<Command>,
    callers: Vec<Caller>,
) -> (Vec<Command>, Vec<Caller>) {
    // Without the lease another leader's table may be newer (S3).
    let Some(shortage) = shared.queue.shortage().filter(|_| consensus.lease().is_valid()) else {
        return (commands, callers);
    };
    let prospects: Vec<Prospect> = {
        let table = shared.table();
        commands.iter().map(|command| table.prospect(command)).collect()
    };
    let mut kept = Vec::with_capacity(commands.len());
    for ((command, caller), prospect) in commands.into_iter().zip(callers).zip(prospects) {
        match prospect {
            Prospect::Changes if shortage.only_endings => {
                caller.deliver(Err(Failure::Unavailable(shortage.why.clone())));
            }
            Prospect::Ends | Prospect::Changes => kept.push((command, caller)),
            Prospect::Nothing(answer) => {
                shared.note_ended_release(&command);
                shared.callers.answer(caller, answer);
            }
        }
    }
    kept.into_iter().unzip()
}
