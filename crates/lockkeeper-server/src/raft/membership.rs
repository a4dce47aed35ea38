//! Membership changes while the cell runs: one change at a time, learners first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use openraft::ChangeMembers;
use openraft::errors::{ClientWriteError, RaftError};

use super::types::{Member, TypeConfig};
use super::{Consensus, MemberStatus, stopped};
use crate::failure::Failure;

/// Maximum lag at which a learner becomes a voter, in entries.
const VOTER_LAG_MAX: u64 = 500;
/// Time without progress after which adding a learner fails.
const NO_PROGRESS: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

type WriteError = RaftError<TypeConfig, ClientWriteError<TypeConfig>>;

fn failed(error: WriteError) -> Failure {
    match error {
        RaftError::Fatal(fatal) => stopped(&fatal),
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => {
            Failure::NotLeader { leader: to.leader_node.map(|member| member.client) }
        }
        RaftError::APIError(error) => Failure::Unavailable(format!("failed to change the members: {error}")),
    }
}

impl Consensus {
    /// Adds a node as a learner and makes it a voter when it has caught up.
    pub(crate) async fn add_member(&self, node_id: u64, member: Member) -> Result<(), Failure> {
        match self.member(node_id) {
            Some(known) if known.member.folder != member.folder => {
                return Err(Failure::Invalid(format!(
                    "node {node_id} is already a member, with a different data folder: remove it first (lockkeeper \
                     member remove {node_id})"
                )));
            }
            Some(known) if known.voter => {
                return Err(Failure::Invalid(format!("node {node_id} is already a member")));
            }
            Some(_) => {}
            None => drop(self.raft.add_learner(node_id, member, false).await.map_err(failed)?),
        }
        self.wait_until_caught_up(node_id).await?;
        let change = ChangeMembers::AddVoterIds(BTreeSet::from([node_id]));
        self.raft.change_membership(change, true).await.map_err(failed)?;
        tracing::info!(node_id, "added a member");
        Ok(())
    }

    /// Waits until the learner has all entries of the log at this moment, and lags behind only a little.
    async fn wait_until_caught_up(&self, node_id: u64) -> Result<(), Failure> {
        let at_least = self.status().last_log;
        let mut best = None;
        let mut progress = Instant::now();
        loop {
            let status = self.status();
            if !status.leads {
                return Err(Failure::NotLeader { leader: status.leader_address });
            }
            let matched = status
                .members
                .iter()
                .find(|member| member.node_id == node_id)
                .and_then(|member| member.matched.filter(|_| member.silent_ms.is_some()));
            let is_caught_up =
                |matched| matched >= at_least && status.last_log.saturating_sub(matched) <= VOTER_LAG_MAX;
            if matched.is_some_and(is_caught_up) {
                return Ok(());
            }
            if matched > best {
                best = matched;
                progress = Instant::now();
            }
            if progress.elapsed() > NO_PROGRESS {
                return Err(Failure::Unavailable(format!(
                    "node {node_id} makes no progress and does not vote yet: check its log messages, then retry, or \
                     remove it (lockkeeper member remove {node_id})"
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Removes a member. A leader must transfer its leadership before it is removed.
    pub(crate) async fn remove_member(&self, node_id: u64) -> Result<(), Failure> {
        let members = self.status().members;
        let Some(leaving) = members.iter().find(|member| member.node_id == node_id) else {
            return Err(Failure::Invalid(format!("node {node_id} is not a member")));
        };
        let change = if leaving.voter {
            let rest: Vec<_> = members.iter().filter(|m| m.voter && m.node_id != node_id).collect();
            let reachable = rest.iter().filter(|member| self.is_reachable(member)).count();
            if rest.is_empty() {
                return Err(Failure::Invalid(
                    "the last voting member can't be removed: stop it instead".to_owned(),
                ));
            }
            if reachable <= rest.len() / 2 {
                return Err(Failure::Unavailable(format!(
                    "without node {node_id} only {reachable} of {} voters would be reachable, and the cell would lose its \
                     quorum: start the others first",
                    rest.len()
                )));
            }
            ChangeMembers::RemoveVoters(BTreeSet::from([node_id]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([node_id]))
        };
        self.raft.change_membership(change, false).await.map_err(failed)?;
        tracing::info!(node_id, "removed a member");
        Ok(())
    }

    /// Changes the addresses of a member.
    pub(crate) async fn move_member(&self, node_id: u64, member: Member) -> Result<(), Failure> {
        let change = ChangeMembers::SetNodes(BTreeMap::from([(node_id, member)]));
        self.raft.change_membership(change, true).await.map_err(failed)?;
        Ok(())
    }

    fn member(&self, node_id: u64) -> Option<MemberStatus> {
        self.status().members.into_iter().find(|member| member.node_id == node_id)
    }

    pub(super) fn is_reachable(&self, member: &MemberStatus) -> bool {
        let within = self.timing.reachable_within().as_millis() as u64;
        member.silent_ms.is_some_and(|silent| silent < within)
    }
}
