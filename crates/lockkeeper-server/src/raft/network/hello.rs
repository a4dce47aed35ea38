//! Hello: who is there? Asked by a node that starts, and before a member is added. Join: how a node gets the cell's secret.

use lockkeeper_api::peer;
use lockkeeper_api::peer::peer_client::PeerClient;
use lockkeeper_core::CellVersion;

use super::Dialer;
use crate::data_dir::Identity;
use crate::raft::timing::Timing;
use crate::raft::types::Member;
use crate::versions::Versions;

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its id.
    pub node_id: u64,
    /// How the others should know it. Its data folder is 0 if it does not take the asking node for a member.
    pub member: Member,
    /// Its cell, if it belongs to one.
    pub cell: Option<String>,
    /// The members of its cell; or those it was started with, if it belongs to none. Empty if it does not take the asking
    /// node for a member.
    pub members: Vec<(u64, Member)>,
    /// What its cell knows about the asking node.
    pub standing: peer::Standing,
    /// The highest cell version that it supports.
    pub cell_version_max: CellVersion,
}

/// What it takes to ask another node something before it is a member.
#[derive(Debug, Clone)]
pub struct Contact<'a> {
    /// How other nodes are reached.
    pub dialer: &'a Dialer,
    /// How long they may take.
    pub timing: &'a Timing,
    /// What this node supports.
    pub versions: Versions,
    /// Who asks.
    pub own: Identity,
}

impl Contact<'_> {
    async fn ask<T>(&self, asking: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let limit = self.timing.hello_within();
        let asked = tokio::time::timeout(limit, asking).await;
        asked.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    }
}

/// Asks the node at this address who it is.
pub async fn hello(contact: &Contact<'_>, address: &str) -> Result<PeerInfo, String> {
    let own = &contact.own;
    let request = peer::HelloRequest {
        node_id: own.node_id,
        cell: own.cell.clone(),
        folder: own.folder,
        proof: own.proof(0, 0).into(),
    };
    let asking = async {
        let mut client = PeerClient::new(contact.dialer.connect_grpc(address, contact.timing).await?);
        client.hello(request).await.map_err(|status| status.message().to_owned())
    };
    let answer = contact.ask(asking).await?.into_inner();
    let (format_min, format_max) = (answer.format_min, answer.format_max);
    if contact.versions.common_format(format_min, format_max).is_none() {
        return Err(contact.versions.no_common_format(format_min, format_max));
    }
    let standing = answer.standing();
    let member = answer.member.ok_or_else(|| "it does not say who it is".to_owned())?;
    Ok(PeerInfo {
        node_id: member.node_id,
        member: from_wire(member).1,
        cell: Some(answer.cell).filter(|cell| !cell.is_empty()),
        members: answer.members.into_iter().map(from_wire).collect(),
        standing,
        cell_version_max: CellVersion(answer.cell_version_max),
    })
}

/// Makes a node, which must belong to no other formed cell, a future member of this node's cell. Repeating it changes nothing.
pub async fn join(contact: &Contact<'_>, node_id: u64, member: &Member) -> Result<(), String> {
    let own = &contact.own;
    let secret = own.secret.as_ref().ok_or("this node belongs to no cell")?;
    let header = peer::Header {
        format: contact.versions.format_min,
        cell: own.cell.clone(),
        from: own.node_id,
        to: node_id,
        to_folder: member.folder,
        proof: own.proof(node_id, member.folder).into(),
    };
    let request = peer::JoinRequest { header: Some(header), secret: secret.to_bytes().into() };
    let asking = async {
        let mut client = PeerClient::new(contact.dialer.connect_grpc(&member.peer, contact.timing).await?);
        client.join(request).await.map(drop).map_err(|status| status.message().to_owned())
    };
    contact.ask(asking).await
}

fn from_wire(member: peer::Member) -> (u64, Member) {
    (member.node_id, Member { client: member.client, peer: member.peer, folder: member.folder })
}

pub(super) fn to_wire(node_id: u64, member: &Member) -> peer::Member {
    peer::Member { node_id, client: member.client.clone(), peer: member.peer.clone(), folder: member.folder }
}
