//! The way to the other members. A cell of one has none.

use openraft::error::Unreachable;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;

use super::snapshot::SnapshotImage;
use super::types::{TypeConfig, Vote};

/// Makes the ways to other members.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network;

/// The way to one member.
#[derive(Debug)]
pub(crate) struct NoWay {
    target: u64,
}

impl NoWay {
    fn unreachable(&self) -> Unreachable<TypeConfig> {
        let text = format!("node {} cannot be reached: this is a cell of one", self.target);
        Unreachable::new(&std::io::Error::other(text))
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = NoWay;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> NoWay {
        NoWay { target }
    }
}

impl RaftNetworkV2<TypeConfig> for NoWay {
    type SnapshotData = SnapshotImage;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: SnapshotOf<TypeConfig, SnapshotImage>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(StreamingError::Unreachable(self.unreachable()))
    }
}
