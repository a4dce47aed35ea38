//! Leadership transfer: the leader hands over to another member.
//!
//! openraft never ends a failed transfer: the leader sends no heartbeats and accepts no entries until another member is elected,
//! and possibly none can win. So a leader that is not replaced within some time steps down, and stands for election again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use openraft::LogId;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use openraft::vote::RaftLeaderId;
use tokio::time::Instant;

use super::types::Vote;
use super::{Consensus, RaftStatus, stopped};
use crate::failure::Failure;

/// A transfer has failed after this many election timeouts: during the first the leader's lease ends, during the second every
/// other member stands for election, and the third is for the votes.
const ELECTIONS_UNTIL_FAILED: u32 = 3;
/// The caller of a transfer gets its answer after this many election timeouts at the latest.
const ELECTIONS_UNTIL_ANSWERED: u32 = 7;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The transfer that this node has started, if any.
#[derive(Debug, Clone, Default)]
pub(super) struct HandOver {
    pending: Arc<Mutex<Option<Transfer>>>,
}

#[derive(Debug, Clone, Copy)]
struct Transfer {
    to: u64,
    /// The term in which this node led.
    term: u64,
    since: Instant,
}

impl HandOver {
    fn pending(&self) -> MutexGuard<'_, Option<Transfer>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Consensus {
    /// Returns the preferred next leader: the reachable voter with the most entries.
    pub(crate) fn successor(&self) -> Option<u64> {
        self.status()
            .members
            .iter()
            .filter(|member| member.voter && member.node_id != self.node_id && self.is_reachable(member))
            .filter(|member| self.disagreement_of(member.node_id).is_none())
            .max_by_key(|member| member.matched)
            .map(|member| member.node_id)
    }

    /// Transfers the leadership and waits until another member leads. This node must have stopped serving as the leader.
    pub(crate) async fn hand_over(&self, to: u64) -> Result<(), Failure> {
        let term = self.status().term;
        let began = Instant::now();
        *self.handing_over.pending() = Some(Transfer { to, term, since: began });
        self.raft.trigger().transfer_leader(to).await.map_err(|f| stopped(&f))?;
        loop {
            let status = self.status();
            if status.term > term && status.leader.is_some() && !status.leads {
                return Ok(());
            }
            let reelected = status.term > term && status.leads;
            if reelected || began.elapsed() > ELECTIONS_UNTIL_ANSWERED * self.timing.election_max {
                return Err(Failure::Unavailable(format!(
                    "node {to} did not take over the leadership: try again"
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends a failed transfer. Returns true if this node stands for election because of it. The task that follows raft's state
    /// must call it repeatedly, because the caller of the transfer may be gone.
    pub(crate) async fn end_failed_hand_over(&self, status: &RaftStatus) -> bool {
        let Some(transfer) = *self.handing_over.pending() else { return false };
        if !status.leads || status.term != transfer.term {
            *self.handing_over.pending() = None;
            return false;
        }
        if transfer.since.elapsed() < ELECTIONS_UNTIL_FAILED * self.timing.election_max
            || mutation::is_on(Mutation::TransferNeverEnds)
        {
            return false;
        }
        tracing::warn!(to = transfer.to, "leadership transfer failed: starting an election");
        match self.step_down(transfer).await {
            Ok(()) => true,
            Err(failure) => {
                tracing::error!(%failure, "failed to step down after a failed leadership transfer");
                false
            }
        }
    }

    /// Steps down as if the successor stood for election in the next term, as this leader has asked it to, and then starts an
    /// election itself. Safe: a vote that reaches no candidate has no effect, and the candidate that it was given to still needs
    /// a log as complete as this one.
    async fn step_down(&self, transfer: Transfer) -> Result<(), Failure> {
        let last_log_id = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            // A leader's last entry has its own term.
            metrics.last_log_index.map(|index| LogId::new(metrics.vote.leader_id.to_committed(), index))
        };
        let vote = Vote::new(transfer.term + 1, transfer.to);
        let request = VoteRequest { leadership_transfer: true, ..VoteRequest::new(vote, last_log_id) };
        let answer =
            self.raft.vote(request).await.map_err(|error| Failure::Unavailable(error.to_string()))?;
        if !answer.vote_granted {
            return Err(Failure::Unavailable(format!("the next term already has a vote: {}", answer.vote)));
        }
        self.raft.trigger().elect(true).await.map_err(|f| stopped(&f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::Timing;
    use crate::test_cell::{LONG, leader, put, start_cell, until};
    use crate::{Node, NodeConfig};

    /// A member that does not exist, so a transfer to it fails.
    const ABSENT: u64 = 9;

    /// Transfers the leadership to a member that does not exist, while the others can't take over either. Returns the nodes, the
    /// position of the leader and its term before the transfer.
    async fn fail_a_transfer() -> (Vec<Node>, usize, u64) {
        let nodes = start_cell(|_, config| config).await;
        let leads = leader(&nodes).await;
        let leader = &nodes[leads];
        until("a write", async || put(leader, "k", 1).await.then_some(())).await;
        let consensus = leader.api().consensus();
        for other in nodes.iter().map(|node| node.api().consensus()) {
            if other.node_id != consensus.node_id {
                other.set_eligible(false);
            }
        }
        let term = consensus.status().term;
        let leader_term = &leader.api().shared().leader_term;
        leader_term.yield_for(LONG);
        leader_term.end(None);
        let handed_over = consensus.hand_over(ABSENT).await;
        assert!(handed_over.is_err(), "the member does not exist");
        (nodes, leads, term)
    }

    /// Without recovery the leader would never send heartbeats or accept entries again.
    #[tokio::test]
    async fn the_leader_recovers_from_a_failed_transfer() {
        let (nodes, leads, term) = fail_a_transfer().await;
        let leader = &nodes[leads];
        until("writes to resume", async || put(leader, "k", 1).await.then_some(())).await;
        assert!(leader.api().consensus().status().term > term);
    }

    /// No member could take the transfer. The others need not wait for the end of their promises to this leader.
    #[tokio::test]
    async fn a_leader_that_stops_without_a_successor_is_replaced_before_the_promises_end() {
        let timing = Timing {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_secs(8),
            election_max: Duration::from_secs(12),
        };
        let mut nodes = start_cell(|_, config| NodeConfig { timing, ..config }).await;
        let leads = leader(&nodes).await;
        until("a write", async || put(&nodes[leads], "k", 1).await.then_some(())).await;
        let all_follow =
            |nodes: &[Node]| nodes.iter().all(|node| node.api().status().leader == Some(leads as u64 + 1));
        until("all to follow it", async || all_follow(&nodes).then_some(())).await;
        let began = Instant::now();
        nodes.remove(leads).stop_without_transfer().await;
        let next = leader(&nodes).await;
        assert!(began.elapsed() < timing.promise() / 2, "node {next} leads after {:?}", began.elapsed());
        assert!(put(&nodes[next], "k", 1).await);
    }

    #[cfg(feature = "simulation")]
    #[tokio::test]
    async fn missing_recovery_is_noticed() {
        mutation::put_back(Some(Mutation::TransferNeverEnds));
        let (nodes, leads, term) = fail_a_transfer().await;
        assert_eq!(nodes[leads].api().consensus().status().term, term);
        assert!(!put(&nodes[leads], "k", 1).await);
        mutation::put_back(None);
    }
}
