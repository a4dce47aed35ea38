//! Hello: who is there? Asked by a node that starts, and before a member is added.

use lockkeeper_proto::peer;
use lockkeeper_proto::peer::peer_client::PeerClient;

use super::{Dialer, FORMAT};
use crate::raft::timing::Timing;
use crate::raft::types::Member;

/// Who asks.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// The node that asks.
    pub node_id: u64,
    /// Its cell, if it belongs to one.
    pub cell: Option<String>,
}

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its id.
    pub node_id: u64,
    /// How the others should know it.
    pub member: Member,
    /// Its cell, if it belongs to one.
    pub cell: Option<String>,
    /// The members of its cell; or those it was started with, if it belongs to none.
    pub members: Vec<(u64, Member)>,
}

/// Asks the node at this address who it is.
pub async fn hello(
    dialer: &Dialer,
    address: &str,
    own: &Introduction,
    timing: &Timing,
) -> Result<PeerInfo, String> {
    let request = peer::HelloRequest {
        format: FORMAT,
        node_id: own.node_id,
        cell: own.cell.clone().unwrap_or_default(),
    };
    let ask = async {
        let mut client = PeerClient::new(dialer.now(address, timing).await?);
        client.hello(request).await.map_err(|status| status.message().to_owned())
    };
    let limit = timing.hello_within();
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
    let member = answer.member.ok_or_else(|| "it does not say who it is".to_owned())?;
    Ok(PeerInfo {
        node_id: member.node_id,
        member: from_wire(member).1,
        cell: Some(answer.cell).filter(|cell| !cell.is_empty()),
        members: answer.members.into_iter().map(from_wire).collect(),
    })
}

fn from_wire(member: peer::Member) -> (u64, Member) {
    (member.node_id, Member { client: member.client, peer: member.peer, folder: member.folder })
}

pub(super) fn to_wire(node_id: u64, member: &Member) -> peer::Member {
    peer::Member { node_id, client: member.client.clone(), peer: member.peer.clone(), folder: member.folder }
}
