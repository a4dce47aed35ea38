//! The transport between members: one persistent connection from each member to each other member, which carries raft's messages as
//! frames directly on TCP (`link.rs` sends requests, `serve.rs` answers them), and the gRPC service `lockkeeper.peer.v1` for rare or
//! large messages: hello and snapshots.
//!
//! Every connection names the cell, the node and the data folder that it is addressed to. A node answers only requests
//! that are addressed to it, so that neither a wrong address nor a node that lost its data can do harm.

mod append;
mod backoff;
mod client;
mod codec;
mod commit_coalescing;
mod decode;
mod dial;
mod direct;
mod format;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod hello;
mod link;
mod links;
mod round_trip;
mod serve;
mod service;
mod transfer;

use std::sync::Arc;

use openraft::network::RaftNetworkFactory;

pub(crate) use self::backoff::random_below;
pub(crate) use self::client::PeerClient;
pub use self::dial::Dialer;
pub use self::hello::{PeerContext, PeerInfo, hello, join};
pub(crate) use self::links::Links;
pub use self::service::PeerService;
pub(crate) use self::service::{MemberProof, PeerServiceParts};
use super::acks::Acks;
use super::agreement::Agreement;
use super::disk_space::SpaceReports;
use super::timing::Timing;
use super::types::{Member, TypeConfig};
use crate::data_dir::DataDir;
use crate::formation::versions::Versions;
use crate::metrics::MemberCounters;

/// Maximum size of a message. The log's reader bounds the entries of one append, and the proposer bounds one entry.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// State shared by all connections of a node.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) home: Arc<DataDir>,
    pub(crate) dialer: Dialer,
    pub(crate) acks: Arc<Acks>,
    pub(crate) timing: Timing,
    pub(crate) counters: MemberCounters,
    pub(crate) versions: Versions,
    pub(crate) agreement: Arc<Agreement>,
    pub(crate) space_reports: Arc<SpaceReports>,
}

/// Factory of the clients that openraft uses to reach other members.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    links: Arc<Links>,
}

impl Network {
    pub(crate) fn new(links: Arc<Links>) -> Network {
        Network { links }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, member: &Member) -> PeerClient {
        PeerClient::new(self.links.clone(), target, member.clone())
    }
}
