//! One ZooKeeper server that keeps everything on disk.

use std::net::SocketAddr;

use lockkeeper_testkit::zookeeper::{self, Zookeeper as Server};

use super::Site;

pub(crate) struct Zookeeper {
    pub(crate) address: SocketAddr,
    server: Server,
}

impl Zookeeper {
    /// One of the commands of four letters.
    pub(crate) fn command(&self, word: &str) -> String {
        zookeeper::command(self.address, word)
    }
}

impl Site for Zookeeper {
    /// The node is deleted; the one who watched it reads the queue, and its session is renewed.
    const REQUESTS_FOR_A_RELEASE: u64 = 4;

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
        // One of them is this one.
        Some(self.command("cons").lines().filter(|line| line.contains("127.0.0.1")).count().saturating_sub(1))
    }

    /// Ephemeral nodes, and those of locks.
    fn left_behind(&self) -> Vec<String> {
        let nodes = self.command("wchp");
        let sessions = self.command("dump");
        let entries = sessions.lines().filter(|line| line.trim_start().starts_with("/tests/"));
        let watches = nodes.lines().filter(|line| line.trim_start().starts_with("/tests/"));
        entries.chain(watches).map(|line| line.trim().to_owned()).collect()
    }
}
