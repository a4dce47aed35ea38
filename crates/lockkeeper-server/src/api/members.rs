//! The members of the cell.

use lockkeeper_api::status::Members;
use lockkeeper_core::Command;

use super::Api;
use crate::failure::Failure;
use crate::leader::leadership;
use crate::raft::network::{hello, join};

impl Api {
    /// Transfers the leadership to this member, whether or not it answers. For tests.
    #[cfg(feature = "simulation")]
    pub async fn hand_over_leadership(&self, to: u64) -> Result<(), Failure> {
        self.shared().leader_term.now()?;
        leadership::hand_over_to(self.shared(), self.consensus(), to).await
    }

    /// Adds a node that runs with an empty folder. It catches up as a learner and then becomes a voter.
    pub async fn add_member(&self, node_id: u64, address: &str) -> Result<Members, Failure> {
        self.shared().leader_term.now()?;
        let own = self.home().identity();
        let contact = self.consensus().peer_context(own.clone());
        let node = hello(&contact, address).await.map_err(|why| {
            Failure::Unavailable(format!(
                "no node answers at {address} ({why}): start it first, with an empty folder: lockkeeper serve \
                 --node-id {node_id} --listen {address} --cell {}",
                self.cell_with(node_id, address)
            ))
        })?;
        if node.node_id != node_id {
            return Err(Failure::Invalid(format!(
                "the node at {address} is node {}, not node {node_id}: name it by its id, or start the right one",
                node.node_id
            )));
        }
        if let Some(theirs) = node.cell.filter(|theirs| *theirs != own.cell) {
            return Err(Failure::Invalid(format!(
                "the node at {address} belongs to another cell ({theirs}): start it with an empty folder"
            )));
        }
        let version = self.shared().table().cell_version();
        if node.cell_version_max < version {
            return Err(Failure::Invalid(format!(
                "the node at {address} supports cell versions up to {}, and the cell has version {version}: start it with the \
                 binary that the members run",
                node.cell_version_max
            )));
        }
        self.note(format!("member {node_id}={address} is added")).await?;
        join(&contact, node_id, &node.member).await.map_err(|why| {
            Failure::Unavailable(format!("the node at {address} did not join the cell ({why}): try again"))
        })?;
        self.consensus().add_member(node_id, node.member).await?;
        Ok(Members { members: self.status().members })
    }

    /// Removes a member permanently. If this node is the one to remove and leads, it transfers leadership first, and the
    /// caller has to repeat the request at the new leader.
    pub async fn remove_member(&self, node_id: u64) -> Result<Members, Failure> {
        self.shared().leader_term.now()?;
        if node_id == self.home().identity().node_id && !self.consensus().is_alone() {
            leadership::hand_over(self.shared(), self.consensus()).await?;
            return Err(Failure::NotLeader { leader: self.consensus().status().leader_address });
        }
        self.note(format!("member {node_id} is removed")).await?;
        self.consensus().remove_member(node_id).await?;
        Ok(Members { members: self.status().members })
    }

    /// Writes an audit note with the caller's identity, if the caller is authenticated.
    async fn note(&self, text: String) -> Result<(), Failure> {
        match self.signature() {
            by if by.is_empty() => Ok(()),
            by => self.command(Command::AuditNote { by, text: text.into() }).await.map(|_| ()),
        }
    }

    /// Returns the value of `--cell` with one more member.
    fn cell_with(&self, node_id: u64, address: &str) -> String {
        let mut members: Vec<_> = self
            .consensus()
            .status()
            .members
            .into_iter()
            .map(|member| (member.node_id, member.member.peer))
            .chain([(node_id, address.to_owned())])
            .collect();
        members.sort();
        members.dedup_by_key(|(id, _)| *id);
        members.iter().map(|(id, address)| format!("{id}={address}")).collect::<Vec<_>>().join(",")
    }
}
