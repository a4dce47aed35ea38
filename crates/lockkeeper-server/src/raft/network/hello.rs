//! Hello: identifies another node, at startup and before a member is added. Join: gives a node the cell's secret.

use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient;
use lockkeeper_core::CellVersion;

use super::Dialer;
use crate::data_dir::Identity;
use crate::formation::versions::Versions;
use crate::raft::timing::Timing;
use crate::raft::types::Member;

/// A node's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its ID.
    pub node_id: u64,
    /// Its entry in the membership. The data folder is 0 if it does not accept the requesting node as a member.
    pub member: Member,
    /// Its cell, if it belongs to one.
    pub cell: Option<String>,
    /// The members of its cell, or the members that it was started with if it belongs to none. Empty if it does not accept
    /// the requesting node as a member.
    pub members: Vec<(u64, Member)>,
    /// Status of the requesting node in its cell.
    pub standing: peer::Standing,
    /// Highest cell version that it supports.
    pub cell_version_max: CellVersion,
}

/// Parameters of requests to nodes that need not be members yet.
#[derive(Debug, Clone)]
pub struct PeerContext<'a> {
    /// Opens the connections.
    pub dialer: &'a Dialer,
    /// Defines the time limits.
    pub timing: &'a Timing,
    /// Versions that this node supports.
    pub versions: Versions,
    /// Identity of this node.
    pub own: Identity,
}

impl PeerContext<'_> {
    async fn within_limit<T>(&self, request: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let limit = self.timing.hello_within();
        let answer = tokio::time::timeout(limit, request).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    }
}

/// Asks the node at this address for its identity.
pub async fn hello(context: &PeerContext<'_>, address: &str) -> Result<PeerInfo, String> {
    let own = &context.own;
    let request = peer::HelloRequest {
        node_id: own.node_id,
        cell: own.cell.clone(),
        folder: own.folder,
        proof: own.proof(0, 0).into(),
    };
    let call = async {
        let mut client = PeerClient::new(context.dialer.connect_grpc(address, context.timing).await?);
        client.hello(request).await.map_err(|status| status.message().to_owned())
    };
    let answer = context.within_limit(call).await?.into_inner();
    let (format_min, format_max) = (answer.format_min, answer.format_max);
    if context.versions.common_format(format_min, format_max).is_none() {
        return Err(context.versions.no_common_format(format_min, format_max));
    }
    let standing = answer.standing();
    let member = answer.member.ok_or_else(|| "its answer lacks its identity".to_owned())?;
    Ok(PeerInfo {
        node_id: member.node_id,
        member: from_wire(member).1,
        cell: Some(answer.cell).filter(|cell| !cell.is_empty()),
        members: answer.members.into_iter().map(from_wire).collect(),
        standing,
        cell_version_max: CellVersion(answer.cell_version_max),
    })
}

/// Prepares a node, which must not belong to another formed cell, to join this node's cell. Idempotent.
pub async fn join(context: &PeerContext<'_>, node_id: u64, member: &Member) -> Result<(), String> {
    let own = &context.own;
    let secret = own.secret.as_ref().ok_or("this node belongs to no cell")?;
    let header = peer::Header {
        format: context.versions.format_min,
        cell: own.cell.clone(),
        from: own.node_id,
        to: node_id,
        to_folder: member.folder,
        proof: own.proof(node_id, member.folder).into(),
    };
    let request = peer::JoinRequest { header: Some(header), secret: secret.to_bytes().into() };
    let call = async {
        let mut client = PeerClient::new(context.dialer.connect_grpc(&member.peer, context.timing).await?);
        client.join(request).await.map(drop).map_err(|status| status.message().to_owned())
    };
    context.within_limit(call).await
}

fn from_wire(member: peer::Member) -> (u64, Member) {
    (member.node_id, Member { client: member.client, peer: member.peer, folder: member.folder })
}

pub(super) fn to_wire(node_id: u64, member: &Member) -> peer::Member {
    peer::Member { node_id, client: member.client.clone(), peer: member.peer.clone(), folder: member.folder }
}
