//! Administration of a cell: members, access control, backups.

mod access;
mod node;
mod snapshot;

use lockkeeper_api::v1;

pub use self::access::{AccessRule, AccessState, AccessToken, NewAccessToken, Quota, Right};
pub(crate) use self::node::Nodes;
pub use self::snapshot::{Snapshot, SnapshotChunk};
use crate::error::Error;
use crate::fencing::Fencing;
use crate::keeper::Keeper;
use crate::view::{Member, Status};

/// The administrator's client of a cell, created by [`Keeper::admin`] or [`KeeperBuilder::admin`].
///
/// Each call opens its own connection to the node that can answer it, with the credentials of the keeper, and closes it
/// afterwards. Calls that change something go to the leader. Operations for any engine are on the [`Keeper`] itself:
/// [`who`](Keeper::who), [`locks`](Keeper::locks), [`force_release`](Keeper::force_release),
/// [`history`](Keeper::history), [`audit`](Keeper::audit), [`top`](Keeper::top), [`blocked`](Keeper::blocked).
///
/// ```no_run
/// # use lockkeeper::prelude::*;
/// # async fn example() -> Result<(), lockkeeper::Error> {
/// let admin = Keeper::builder().admin("lockkeeper://10.0.0.1:7420,10.0.0.2:7420")?;
/// for member in admin.members().await?.members {
///     println!("{} at {}, {:?} entries behind", member.node_id, member.address, member.lag);
/// }
/// admin.add_member(4, "10.0.0.4:7420").await?;
/// # Ok(()) }
/// ```
///
/// [`KeeperBuilder::admin`]: crate::KeeperBuilder::admin
#[derive(Debug, Clone)]
pub struct Admin {
    nodes: Nodes,
}

/// The members of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Members {
    /// The leader's node ID, if it is known.
    pub leader: Option<u64>,
    /// The members, as seen by the leader if it answers: only the leader knows how far each member has replicated.
    pub members: Vec<Member>,
}

impl<F: Fencing> Keeper<F> {
    /// Creates the administrator's client of the cell.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the engine is not a cell on the network.
    pub fn admin(&self) -> Result<Admin, Error> {
        match self.shared.engine.nodes() {
            Some(nodes) => Ok(Admin { nodes: nodes.clone() }),
            None => Err(Error::unsupported(format!(
                "the engine {} has no members, access rules or snapshots to administer: connect to a cell, \
                 lockkeeper://host:port",
                self.engine()
            ))),
        }
    }
}

impl Admin {
    pub(crate) fn new(nodes: Nodes) -> Admin {
        Admin { nodes }
    }

    /// Returns the status of the cell from a node that knows the leader, or else from any node that answers.
    ///
    /// A node that was removed or is cut off reports an outdated state.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn status(&self) -> Result<Status, Error> {
        self.nodes.status().await
    }

    /// Returns the members of the cell.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn members(&self) -> Result<Members, Error> {
        let mut status = self.nodes.status().await?;
        let leader = status.members.iter().find(|member| Some(member.node_id) == status.leader);
        if let Some(leader) = leader.filter(|leader| leader.node_id != status.node_id)
            && let Ok(from_leader) = self.nodes.at(&leader.address).status().await
        {
            status = from_leader;
        }
        Ok(Members { leader: status.leader, members: status.members })
    }

    /// Adds a node to the cell. Returns when the node has received the whole state and votes.
    ///
    /// The node must be running with an empty data directory and listen at `address`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the node cannot join this cell, [`Error::Unavailable`] if no leader answers.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have added the node: check [`members`](Admin::members).
    pub async fn add_member(&self, node_id: u64, address: &str) -> Result<(), Error> {
        let request = v1::AddMemberRequest { node_id, address: address.to_owned() };
        self.nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.add_member(request).await }
            })
            .await
            .map(drop)
    }

    /// Removes a member permanently. If it leads, it transfers leadership first.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have removed the member: check [`members`](Admin::members).
    pub async fn remove_member(&self, node_id: u64) -> Result<(), Error> {
        let request = v1::RemoveMemberRequest { node_id };
        self.nodes.call(|mut node| async move { node.remove_member(request).await }).await.map(drop)
    }

    /// Starts a backup: a consistent snapshot of the cell, for `lockkeeper snapshot restore`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let request = v1::SaveSnapshotRequest {};
        self.nodes.call(|mut node| async move { node.save_snapshot(request).await }).await.map(Snapshot::new)
    }
}
