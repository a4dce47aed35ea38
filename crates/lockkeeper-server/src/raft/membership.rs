//! Members come and go while the cell runs: one change at a time, learners first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use openraft::ChangeMembers;
use openraft::errors::{ClientWriteError, RaftError};

use super::types::{Member, TypeConfig};
use super::{Consensus, MemberStatus, stopped};
use crate::failure::Failure;

/// A learner this close behind may vote.
const CLOSE_BEHIND: u64 = 500;
/// A learner that has got nothing new for so long is given up.
const NO_PROGRESS: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

type WriteError = RaftError<TypeConfig, ClientWriteError<TypeConfig>>;

fn failed(error: WriteError) -> Failure {
    match error {
        RaftError::Fatal(fatal) => stopped(&fatal),
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => {
            Failure::NotLeader { leader: to.leader_node.map(|member| member.client) }
        }
        RaftError::APIError(error) => {
            Failure::Unavailable(format!("the members cannot be changed now: {error}"))
        }
    }
}

impl Consensus {
    /// A node learns all that the cell knows, and then votes.
    pub(crate) async fn add_member(&self, node_id: u64, member: Member) -> Result<(), Failure> {
        match self.member(node_id) {
            Some(known) if known.member.folder != member.folder => {
                return Err(Failure::Invalid(format!(
                    "node {node_id} is a member with another data folder: remove it first (lockkeeper member \
                     remove {node_id})"
                )));
            }
            Some(known) if known.voter => {
                return Err(Failure::Invalid(format!("node {node_id} is a member already")));
            }
            Some(_) => {}
            None => drop(self.raft.add_learner(node_id, member, false).await.map_err(failed)?),
        }
        self.until_close_behind(node_id).await?;
        let change = ChangeMembers::AddVoterIds(BTreeSet::from([node_id]));
        self.raft.change_membership(change, true).await.map_err(failed)?;
        tracing::info!(node_id, "a member was added");
        Ok(())
    }

    /// It has all that there was when it was added, and little is missing of what has come since.
    async fn until_close_behind(&self, node_id: u64) -> Result<(), Failure> {
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
            let is_close =
                |matched| matched >= at_least && status.last_log.saturating_sub(matched) <= CLOSE_BEHIND;
            if matched.is_some_and(is_close) {
                return Ok(());
            }
            if matched > best {
                best = matched;
                progress = Instant::now();
            }
            if progress.elapsed() > NO_PROGRESS {
                return Err(Failure::Unavailable(format!(
                    "node {node_id} learns nothing and does not vote yet: look at its log, then repeat this, or \
                     remove it (lockkeeper member remove {node_id})"
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// A member leaves for good. The leader itself has to hand over first.
    pub(crate) async fn remove_member(&self, node_id: u64) -> Result<(), Failure> {
        let members = self.status().members;
        let Some(leaving) = members.iter().find(|member| member.node_id == node_id) else {
            return Err(Failure::Invalid(format!("node {node_id} is no member")));
        };
        let change = if leaving.voter {
            let rest: Vec<_> = members.iter().filter(|m| m.voter && m.node_id != node_id).collect();
            let there = rest.iter().filter(|member| self.is_reachable(member)).count();
            if rest.is_empty() {
                return Err(Failure::Invalid(
                    "the last member that votes cannot be removed: stop it instead".to_owned(),
                ));
            }
            if there <= rest.len() / 2 {
                return Err(Failure::Unavailable(format!(
                    "without node {node_id} only {there} of {} voters would answer, and the cell could do nothing \
                     more: start the others first",
                    rest.len()
                )));
            }
            ChangeMembers::RemoveVoters(BTreeSet::from([node_id]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([node_id]))
        };
        self.raft.change_membership(change, false).await.map_err(failed)?;
        tracing::info!(node_id, "a member was removed");
        Ok(())
    }

    /// Makes a member known under another address.
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
