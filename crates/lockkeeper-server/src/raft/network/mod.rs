//! The way between members: openraft's messages over our gRPC service `lockkeeper.peer.v1`, and entries as frames straight on
//! TCP (`direct.rs`).
//!
//! Every message says for which cell, which node and which data folder it is meant. A node answers only what
//! is meant for it, so that neither a wrong address nor a node that lost its data can do any harm.

mod client;
mod codec;
mod dial;
mod direct;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod hello;
mod service;
mod transfer;
mod ways;
mod withhold;

use std::sync::Arc;

use openraft::network::RaftNetworkFactory;

pub(crate) use self::client::PeerClient;
pub use self::dial::Dialer;
pub use self::hello::{Introduction, PeerInfo, hello};
pub use self::service::PeerService;
use self::ways::Ways;
use super::acks::Acks;
use super::room::Rooms;
use super::types::{Member, TypeConfig};
use crate::data_dir::DataDir;

/// Which messages these are. Nodes of different formats do not form a cell.
pub const FORMAT: u32 = 2;
/// Largest message: the entries of one append are bounded by the log's reader, and one entry by the proposer.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Makes the ways to other members.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    home: Arc<DataDir>,
    ways: Arc<Ways>,
    acks: Arc<Acks>,
    rooms: Arc<Rooms>,
}

impl Network {
    pub(crate) fn new(home: Arc<DataDir>, dialer: Dialer, acks: Arc<Acks>, rooms: Arc<Rooms>) -> Network {
        Network { home, ways: Arc::new(Ways::new(dialer)), acks, rooms }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, member: &Member) -> PeerClient {
        PeerClient::new(self, target, member.clone())
    }
}
