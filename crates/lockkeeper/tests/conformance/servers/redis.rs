//! One Redis, durable by default.

use std::net::SocketAddr;

use lockkeeper_testkit::Servers as _;
use lockkeeper_testkit::redis::{DURABLE, Redis as Server};

use super::Site;

pub(crate) struct Redis {
    pub(crate) address: SocketAddr,
    server: Server,
}

impl Redis {
    pub(crate) fn with(arguments: Vec<&'static str>) -> Redis {
        let server = Server::with(&arguments).unwrap();
        Redis { address: server.address, server }
    }

    pub(crate) fn signal(&self, signal: lockkeeper_testkit::Signal) {
        self.server.signal(signal);
    }

    /// Runs a command and returns the answer as text, with a line for each element of an array.
    pub(crate) fn command(&self, arguments: &[&str]) -> String {
        self.server.command(arguments).unwrap()
    }
}

impl Site for Redis {
    fn start() -> Redis {
        Redis::with(DURABLE.to_vec())
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("redis://{}", addresses[0])
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart().unwrap();
    }

    fn connections(&self) -> Option<usize> {
        // Without this connection.
        Some(self.command(&["CLIENT", "LIST"]).lines().filter(|line| line.starts_with("id=")).count() - 1)
    }

    fn left_behind(&self) -> Vec<String> {
        let keys = self.command(&["KEYS", "*"]);
        keys.lines().filter(|key| *key != "lockkeeper:token").map(str::to_owned).collect()
    }
}
