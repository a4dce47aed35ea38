//! Type configuration of openraft.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::encoded_batch::EncodedBatch;

openraft::declare_raft_types!(
    /// Types of Lockkeeper for openraft.
    pub TypeConfig:
        D = Proposal,
        R = (),
        NodeId = u64,
        Node = Member,
        AsyncRuntime = super::runtime::Runtime,
);

/// Member of the cell. Part of the replicated membership.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Address for clients.
    pub client: String,
    /// Address for the other members.
    pub peer: String,
    /// ID of its data folder. A node that returns with an empty folder has another ID and no longer counts as
    /// this member: it may have lost votes and entries that others rely on.
    pub folder: u64,
}

/// Content of one log entry. Cloning is cheap: the log, replication and the lock table share the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Random ID of the proposing process. Only that process has callers that wait for the answers.
    pub proposer: u64,
    /// Sequence number of the proposal in that process.
    pub sequence: u64,
    /// The commands and their cell time.
    pub batch: Arc<EncodedBatch>,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands at {}", self.batch.commands.len(), self.batch.now)
    }
}

/// An entry of the log.
pub type Entry = <TypeConfig as openraft::RaftTypeConfig>::Entry;
/// A vote.
pub type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
/// Identity of an entry: leader, term and index.
pub type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
/// The members of the cell as of some entry.
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
/// Metadata of a snapshot: the last entry and the membership.
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
/// The members of the cell.
pub type Membership = openraft::Membership<u64, Member>;
