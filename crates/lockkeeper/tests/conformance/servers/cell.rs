//! A cell of one durable node, in a process of its own.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::{Site, free_address};
use crate::child::Child;

pub(crate) struct Cell {
    folder: TempDir,
    address: SocketAddr,
    node: Option<Child>,
}

impl Site for Cell {
    const KNOWS_REQUESTS: bool = false;

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
}
