//! The types that openraft is configured with.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::encoded_batch::EncodedBatch;

openraft::declare_raft_types!(
    /// How openraft sees Lockkeeper.
    pub TypeConfig:
        D = Proposal,
        R = (),
        NodeId = u64,
        Node = Member,
        AsyncRuntime = super::runtime::Runtime,
);

/// A member of the cell, as all members know it. Part of the replicated membership.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Where clients reach it.
    pub client: String,
    /// Where the other members reach it.
    pub peer: String,
    /// The data folder it votes from. A node that comes back with an empty folder has another one, and no
    /// longer counts as this member: it may have forgotten votes and entries that others rely on.
    pub folder: u64,
}

/// What one log entry carries. Cloning is cheap: the log, replication and the lock table share the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Drawn anew by each process. Only the process that proposed has callers waiting for the answers.
    pub proposer: u64,
    /// Counts the proposals of that process.
    pub sequence: u64,
    /// The commands with their time.
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
/// The identity of an entry.
pub type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
/// The members of the cell as of some entry.
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
/// What a snapshot covers.
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
/// The members of the cell.
pub type Membership = openraft::Membership<u64, Member>;
