//! Hello: who is there? Asked by a node that starts, and before a member is added.

use std::time::Duration;

use lockkeeper_core::CellVersion;
use lockkeeper_proto::peer;
use lockkeeper_proto::peer::peer_client::PeerClient;

use super::{Dialer, FORMAT};
use crate::data_dir::Identity;
use crate::raft::types::Member;

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

/// Asks the node at this address who it is.
pub async fn hello(
    dialer: &Dialer,
    address: &str,
    own: &Identity,
    limit: Duration,
) -> Result<PeerInfo, String> {
    let request = peer::HelloRequest {
        format: FORMAT,
        node_id: own.node_id,
        cell: own.cell.clone(),
        folder: own.folder,
        proof: own.proof(0, 0).into(),
    };
    let ask = async {
        let mut client = PeerClient::new(dialer.now(address).await?);
        client.hello(request).await.map_err(|status| status.message().to_owned())
    };
    let answer = match tokio::time::timeout(limit, ask).await {
        Ok(answer) => answer?.into_inner(),
        Err(_) => return Err(format!("no answer within {limit:?}")),
    };
    if answer.format != FORMAT {
        return Err(format!(
            "it speaks format {} with other members, this node format {FORMAT}: run the same version on all",
            answer.format
        ));
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

/// Makes the node at this address, which must belong to no other cell, a future member of this node's cell. Repeating it
/// changes nothing.
pub async fn join(
    dialer: &Dialer,
    own: &Identity,
    (node_id, member): (u64, &Member),
    limit: Duration,
) -> Result<(), String> {
    let secret = own.secret.as_ref().ok_or("this node belongs to no cell")?;
    let header = peer::Header {
        format: FORMAT,
        cell: own.cell.clone(),
        from: own.node_id,
        to: node_id,
        to_folder: member.folder,
        proof: own.proof(node_id, member.folder).into(),
    };
    let request = peer::JoinRequest { header: Some(header), secret: secret.to_bytes().into() };
    let ask = async {
        let mut client = PeerClient::new(dialer.now(&member.peer).await?);
        client.join(request).await.map(drop).map_err(|status| status.message().to_owned())
    };
    tokio::time::timeout(limit, ask).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

fn from_wire(member: peer::Member) -> (u64, Member) {
    (member.node_id, Member { client: member.client, peer: member.peer, folder: member.folder })
}

pub(super) fn to_wire(node_id: u64, member: &Member) -> peer::Member {
    peer::Member { node_id, client: member.client.clone(), peer: member.peer.clone(), folder: member.folder }
}
