//! One durable etcd member.

use std::net::SocketAddr;

use lockkeeper_testkit::etcd::Etcd as Server;
use lockkeeper_testkit::{Servers as _, connections_to, http};

use super::Site;

pub(crate) struct Etcd {
    pub(crate) address: SocketAddr,
    server: Server,
}

impl Etcd {
    /// Sends a request to etcd's JSON gateway, which needs no client library.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        http::post(self.address, path, body)
    }
}

impl Site for Etcd {
    const FINDINGS: &'static [&'static str] = &["single-node"];

    /// The deletion of the key, the next waiter's read of the queue, and the renewal of its lease.
    const REQUESTS_PER_RELEASE_MAX: u64 = 4;

    fn start() -> Etcd {
        let server = Server::start(1).unwrap();
        Etcd { address: server.addresses()[0], server }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("etcd://{}", addresses[0])
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart().unwrap();
    }

    fn requests(&self) -> u64 {
        self.server.requests().unwrap()
    }

    fn connections(&self) -> Option<usize> {
        connections_to(self.address)
    }

    /// Keys and leases.
    fn left_behind(&self) -> Vec<String> {
        let keys = self.post("/v3/kv/range", r#"{"key": "AA==", "range_end": "AA==", "keys_only": true}"#);
        let leases = self.post("/v3/lease/leases", "{}");
        let keys =
            keys.split("\"key\":\"").skip(1).map(|rest| rest.split('"').next().unwrap_or("").to_owned());
        let leases = leases
            .split("\"ID\":\"")
            .skip(1)
            .map(|rest| format!("lease {}", rest.split('"').next().unwrap_or("")));
        keys.chain(leases).collect()
    }
}
