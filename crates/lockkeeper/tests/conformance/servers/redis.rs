//! One Redis that keeps everything on disk, unless told otherwise.

use std::net::SocketAddr;

use lockkeeper_testkit::redis::{DURABLE, Redis as Server};

use super::Site;

pub(crate) struct Redis {
    pub(crate) address: SocketAddr,
    server: Server,
}

impl Redis {
    pub(crate) fn with(more: Vec<&'static str>) -> Redis {
        let server = Server::with(&more).unwrap();
        Redis { address: server.address, server }
    }

    pub(crate) fn signal(&self, signal: lockkeeper_testkit::Signal) {
        self.server.signal(signal);
    }

    /// One command; the answer as text, an array as its parts in lines.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        self.server.command(words).unwrap()
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
        // One of them is this one.
        Some(self.command(&["CLIENT", "LIST"]).lines().filter(|line| line.starts_with("id=")).count() - 1)
    }

    fn left_behind(&self) -> Vec<String> {
        let keys = self.command(&["KEYS", "*"]);
        keys.lines().filter(|key| *key != "lockkeeper:token").map(str::to_owned).collect()
    }
}
