//! The transport to nodes on the network.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_net::credentials::Credentials;
use smol_str::{SmolStr, format_smolstr};

use super::direct;
use super::transport::{LinkError, Opening, Transport};

/// The connect timeout if there are several nodes.
const CONNECT_WITH_CHOICE: Duration = Duration::from_millis(700);

/// The nodes on the network.
pub(super) struct Network {
    hosts: Vec<String>,
    /// The host to try first, chosen at random, so that clients spread over the nodes.
    first: usize,
    connect_timeout: Duration,
    credentials: Arc<Credentials>,
}

impl Network {
    pub(super) fn new(hosts: Vec<String>, connect_timeout: Duration, credentials: Credentials) -> Network {
        let first = crate::backoff::random(hosts.len() as u64) as usize;
        Network { hosts, first, connect_timeout, credentials: Arc::new(credentials) }
    }
}

impl Transport for Network {
    fn open(&self, attempt: usize, leader: Option<SmolStr>) -> Opening {
        let host = match leader {
            Some(leader) => leader,
            None => SmolStr::new(&self.hosts[(self.first + attempt) % self.hosts.len()]),
        };
        // A stopped node accepts the connection but never answers: try the others soon.
        let limit = match self.has_choice() {
            true => self.connect_timeout.min(CONNECT_WITH_CHOICE),
            false => self.connect_timeout,
        };
        let credentials = Arc::clone(&self.credentials);
        Box::pin(async move {
            match tokio::time::timeout(limit, direct::open(host.clone(), &credentials)).await {
                Ok(result) => result,
                Err(_) => Err(LinkError::new(format_smolstr!("{host} did not answer within {limit:?}"))),
            }
        })
    }

    fn has_choice(&self) -> bool {
        self.hosts.len() > 1
    }

    fn addresses(&self) -> String {
        self.hosts.join(", ")
    }
}
