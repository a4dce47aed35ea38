//! Takes office when raft makes this node the leader, and leaves it when raft no longer does.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Command, Waiting};

use crate::callers::Caller;
use crate::calls::OWN_REQUEST_PREFIX;
use crate::failure::Failure;
use crate::raft::{Consensus, RaftStatus};
use crate::shared::Shared;

/// Between two tries to have the leadership confirmed.
const CONFIRM_AGAIN: Duration = Duration::from_millis(20);

/// Follows raft until it ends; says why it ended.
pub(crate) async fn follow(shared: Arc<Shared>, consensus: Consensus) -> String {
    let mut status = consensus.status();
    loop {
        if let Some(why) = status.stopped {
            leave(&shared, &RaftStatus { stopped: Some(why.clone()), ..RaftStatus::default() });
            return why;
        }
        if status.leads && shared.office.term() != Some(status.term) {
            leave(&shared, &status);
            // Before the first answer, everything of the predecessors must be applied here.
            match consensus.confirm_leadership().await {
                Ok(()) => take(&shared, status.term),
                Err(failure) => {
                    tracing::debug!(%failure, "the leadership is not confirmed yet");
                    tokio::time::sleep(CONFIRM_AGAIN).await;
                    status = consensus.status();
                    continue;
                }
            }
        } else if !status.leads {
            leave(&shared, &status);
        }
        status = consensus.changed(&status).await;
    }
}

fn take(shared: &Shared, term: u64) {
    let table = shared.table();
    shared.expiry.take_over(&table);
    shared.office.take(term, table.now());
    let counts = table.counts();
    // Their callers were calls to a former leader or a former life of this node, and cannot come back for them.
    let orphans: Vec<_> = table
        .waiting_requests()
        .filter(|(_, id)| id.starts_with(OWN_REQUEST_PREFIX))
        .map(|(session, id)| (session, id.clone()))
        .collect();
    drop(table);
    for (session, id) in orphans {
        let command = Command::Cancel { session, what: Waiting::Request(id) };
        shared.proposer.submit(command, Caller::Nobody);
    }
    shared.timers_changed.notify_one();
    tracing::info!(term, sessions = counts.sessions, locks = counts.locks, "this node leads the cell");
}

fn leave(shared: &Shared, status: &RaftStatus) {
    if shared.office.term().is_some() {
        tracing::warn!(term = status.term, leader = ?status.leader, "this node no longer leads the cell");
    }
    shared.office.leave(status.leader_address.clone().filter(|_| !status.leads));
    shared.expiry.stop();
    shared.no_tick_under_way();
    shared.callers.fail_all(&Failure::Unknown("the leader has changed".to_owned()));
}
