//! Decodes raft's messages from other members. This is the only place where they are decoded, and it refuses every message with
//! a term that no election can have reached (`raft/terms.rs`): raft persists a higher term as soon as it sees one.

use openraft::async_runtime::WatchReceiver;
use serde::de::DeserializeOwned;
use tonic::Status;

use super::codec;
use super::service::{Inner, TransferLeaderRequest, VoteRequest};
use crate::raft::terms;
use crate::raft::types::{LogId, SnapshotMeta, TypeConfig, Vote};

pub(super) type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;

/// A message with terms.
pub(super) trait RaftMessage: Sized {
    /// Decodes it. Called only by [`Inner::decode`].
    fn from_bytes(bytes: &[u8]) -> Result<Self, String>;

    /// Returns the highest term in it.
    fn highest_term(&self) -> u64;
}

fn plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    codec::decode(bytes)
}

fn term_of(id: Option<&LogId>) -> u64 {
    id.map_or(0, |id| id.leader_id.term)
}

impl RaftMessage for AppendEntriesRequest {
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        codec::decode_append(bytes)
    }

    fn highest_term(&self) -> u64 {
        let entries = self.entries.iter().map(|entry| &entry.log_id);
        let ids = entries.chain(&self.prev_log_id).chain(&self.leader_commit);
        ids.map(|id| id.leader_id.term).fold(self.vote.leader_id.term, u64::max)
    }
}

impl RaftMessage for VoteRequest {
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        plain(bytes)
    }

    fn highest_term(&self) -> u64 {
        self.vote.leader_id.term.max(term_of(self.last_log_id.as_ref()))
    }
}

impl RaftMessage for TransferLeaderRequest {
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        plain(bytes)
    }

    fn highest_term(&self) -> u64 {
        self.from_leader().leader_id.term.max(term_of(self.last_log_id()))
    }
}

impl RaftMessage for Vote {
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        plain(bytes)
    }

    fn highest_term(&self) -> u64 {
        self.leader_id.term
    }
}

impl RaftMessage for SnapshotMeta {
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        plain(bytes)
    }

    fn highest_term(&self) -> u64 {
        term_of(self.last_log_id.as_ref()).max(term_of(self.last_membership.log_id().as_ref()))
    }
}

impl Inner {
    /// Decodes a message and checks its terms.
    pub(super) fn decode<M: RaftMessage>(&self, bytes: &[u8]) -> Result<M, Status> {
        let message = M::from_bytes(bytes).map_err(Status::invalid_argument)?;
        self.check_term(message.highest_term())?;
        Ok(message)
    }

    fn check_term(&self, term: u64) -> Result<(), Status> {
        let highest = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let has_members = metrics.membership_config.nodes().next().is_some();
            terms::highest_plausible(metrics.current_term, has_members)
        };
        if term <= highest {
            return Ok(());
        }
        if let Some(suppressed) = self.implausible_terms.allow() {
            tracing::warn!(term, highest, suppressed, "refused a message: its term is implausibly high");
        }
        Err(Status::failed_precondition(format!(
            "the message has term {term}, but this node accepts terms up to {highest}: if the sender is a member, remove \
             this node from the cell and add it again with an empty data folder; otherwise protect the peer port with \
             --peer-ca"
        )))
    }
}
