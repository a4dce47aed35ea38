//! Nodes on the network: which one to go to, and how long to try.

use std::time::Duration;

use smol_str::{SmolStr, format_smolstr};

use super::direct;
use super::transport::{Opening, Refused, Transport};

/// Nodes on the network.
pub(super) struct Network {
    hosts: Vec<String>,
    /// Which host goes first: drawn once, so that clients spread over the nodes.
    first: usize,
    connect_timeout: Duration,
}

impl Network {
    pub(super) fn new(hosts: Vec<String>, connect_timeout: Duration) -> Network {
        let first = crate::backoff::random(hosts.len() as u64) as usize;
        Network { hosts, first, connect_timeout }
    }
}

impl Transport for Network {
    fn open(&self, attempt: usize, leader: Option<SmolStr>) -> Opening {
        let host = match leader {
            Some(leader) => leader,
            None => SmolStr::new(&self.hosts[(self.first + attempt) % self.hosts.len()]),
        };
        let limit = self.connect_timeout;
        Box::pin(async move {
            match tokio::time::timeout(limit, direct::open(host.clone())).await {
                Ok(result) => result,
                Err(_) => Err(Refused::because(format_smolstr!("{host} did not answer within {limit:?}"))),
            }
        })
    }

    fn addresses(&self) -> String {
        self.hosts.join(", ")
    }
}
