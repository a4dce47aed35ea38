//! A cell of one durable node, in a process of its own.

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
    /// The sum of some figures of the node.
    fn figures(&self, names: &[&str]) -> u64 {
        let text = http::get(self.address, "/metrics");
        assert!(!text.is_empty(), "the node at {} tells no figures", self.address);
        let figures = text.lines().filter_map(|line| {
            let (name, figure) = line.split_once(' ')?;
            names.contains(&name).then(|| figure.parse::<f64>().ok())?
        });
        figures.sum::<f64>() as u64
    }
}

impl Site for Cell {
    const KNOWS_REQUESTS: bool = false;
    /// The release; the next one is told without having asked again.
    const REQUESTS_FOR_A_RELEASE: u64 = 1;

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
        assert_eq!(node.says(), "listening");
        self.node = Some(node);
    }

    fn requests(&self) -> u64 {
        self.figures(&["lockkeeper_proposer_batch_commands_sum"])
    }

    fn connections(&self) -> Option<usize> {
        connections_to(self.address)
    }

    fn left_behind(&self) -> Vec<String> {
        let figures =
            ["lockkeeper_sessions", "lockkeeper_locks", "lockkeeper_locks_held", "lockkeeper_lock_waiters"];
        let left = figures.into_iter().filter(|name| self.figures(&[*name]) > 0);
        left.map(str::to_owned).collect()
    }
}
