//! The transport between members: one lasting connection from each to each, with raft's messages as frames straight on TCP
//! (`link.rs` sends requests, `serve.rs` answers them), and the gRPC service `lockkeeper.peer.v1` for what is rare or large: hello and
//! snapshots.
//!
//! Every connection says for which cell, which node and which data folder it is meant. A node answers only what
//! is meant for it, so that neither a wrong address nor a node that lost its data can do any harm.

mod append;
mod backoff;
mod client;
mod codec;
mod commit_coalescing;
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
pub use self::hello::{Contact, PeerInfo, hello, join};
pub(crate) use self::links::Links;
pub use self::service::PeerService;
pub(crate) use self::service::PeerServiceParts;
use super::acks::Acks;
use super::agreement::Agreement;
use super::disk_space::SpaceReports;
use super::timing::Timing;
use super::types::{Member, TypeConfig};
use crate::data_dir::DataDir;
use crate::metrics::MemberCounters;
use crate::versions::Versions;

/// Largest message: the entries of one append are bounded by the log's reader, and one entry by the proposer.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// What all connections of a node share.
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

/// Makes the clients that openraft speaks with other members by.
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
