//! A cell of one durable node, in a child process.

use std::net::SocketAddr;

use lockkeeper_testkit::{connections_to, http};
use tempfile::TempDir;

use super::{Site, free_address};
use crate::child::Child;

pub(crate) struct Cell {
    folder: TempDir,
    address: SocketAddr,
    node: Option<Child>,
}

impl Cell {
    /// The sum of metrics of the node.
    fn metrics(&self, names: &[&str]) -> u64 {
        let text = http::get(self.address, "/metrics");
        assert!(!text.is_empty(), "the node at {} returns no metrics", self.address);
        let values = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            names.contains(&name).then(|| value.parse::<f64>().ok())?
        });
        values.sum::<f64>() as u64
    }
}

impl Site for Cell {
    const ANSWERS_REPEATS_LOCALLY: bool = false;
    /// The release. The next waiter is notified without a request.
    const REQUESTS_PER_RELEASE_MAX: u64 = 1;

    fn start() -> Cell {
        let mut cell = Cell { folder: tempfile::tempdir().unwrap(), address: free_address(), node: None };
        cell.restart();
        cell
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        format!("lockkeeper://{}", addresses[0])
    }

    fn kill(&mut self) {
        self.node = None;
    }

    fn restart(&mut self) {
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mut node = Child::start("node", &[("ADDRESS", &self.address.to_string()), ("FOLDER", &folder)]);
        assert_eq!(node.next_message(), "listening");
        self.node = Some(node);
    }

    fn requests(&self) -> u64 {
        self.metrics(&["lockkeeper_proposer_batch_commands_sum"])
    }

    fn connections(&self) -> Option<usize> {
        connections_to(self.address)
    }

    fn left_behind(&self) -> Vec<String> {
        let metrics =
            ["lockkeeper_sessions", "lockkeeper_locks", "lockkeeper_locks_held", "lockkeeper_lock_waiters"];
        let left = metrics.into_iter().filter(|name| self.metrics(&[*name]) > 0);
        left.map(str::to_owned).collect()
    }
}
