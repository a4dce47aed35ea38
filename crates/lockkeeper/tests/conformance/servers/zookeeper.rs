//! One durable ZooKeeper server.

use std::net::SocketAddr;

use lockkeeper_testkit::Servers as _;
use lockkeeper_testkit::zookeeper::{self, Zookeeper as Server};

use super::Site;

pub(crate) struct Zookeeper {
    pub(crate) address: SocketAddr,
    server: Server,
}

impl Zookeeper {
    /// Runs a four-letter-word command.
    pub(crate) fn command(&self, word: &str) -> String {
        zookeeper::command(self.address, word)
    }
}

impl Site for Zookeeper {
    const FINDINGS: &'static [&'static str] = &["single-node"];

    /// The deletion of the node, the next waiter's read of the queue, and the renewal of its session.
    const REQUESTS_PER_RELEASE_MAX: u64 = 4;

    fn start() -> Zookeeper {
        let server = Server::start(1).unwrap();
        Zookeeper { address: server.addresses()[0], server }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("zookeeper://{}/tests", addresses[0])
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
        // Without this connection.
        Some(self.command("cons").lines().filter(|line| line.contains("127.0.0.1")).count().saturating_sub(1))
    }

    /// Ephemeral nodes and watched nodes below the root of the tests.
    fn left_behind(&self) -> Vec<String> {
        let (watched, ephemeral) = (self.command("wchp"), self.command("dump"));
        let nodes =
            ephemeral.lines().chain(watched.lines()).filter(|line| line.trim_start().starts_with("/tests/"));
        nodes.map(|line| line.trim().to_owned()).collect()
    }
}
