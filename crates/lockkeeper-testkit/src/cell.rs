//! A cell: `lockkeeper serve` as real processes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tempfile::TempDir;

use crate::error::ServerError;
use crate::free_address;
use crate::http::get;
use crate::process::{Process, Program, folder};

#[derive(Debug)]
struct Node {
    address: SocketAddr,
    process: Option<Process>,
}

/// One, three or five nodes.
#[derive(Debug)]
pub struct Cell {
    folder: TempDir,
    binary: PathBuf,
    nodes: Vec<Node>,
}

impl Cell {
    /// Starts a cell with this binary.
    ///
    /// # Errors
    ///
    /// If a node does not start.
    pub fn start(binary: &Path, count: usize) -> Result<Cell, ServerError> {
        let nodes = (0..count).map(|_| Node { address: free_address(7420), process: None }).collect();
        let mut cell = Cell { folder: folder()?, binary: binary.to_owned(), nodes };
        cell.restart()?;
        Ok(cell)
    }

    /// The addresses for clients.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Ends all nodes with SIGKILL.
    pub fn kill(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.process = None);
    }

    /// Starts the nodes that do not run, with their data, and waits until they are ready.
    ///
    /// # Errors
    ///
    /// If a node does not start.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        let members: Vec<String> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(number, node)| format!("{}={}", number + 1, node.address))
            .collect();
        let members = members.join(",");
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if node.process.is_some() {
                continue;
            }
            let data = self.folder.path().join(format!("node-{number}")).to_string_lossy().into_owned();
            let (id, address) = ((number + 1).to_string(), node.address.to_string());
            let arguments =
                ["serve", "--node-id", &id, "--listen", &address, "--data-dir", &data, "--cell", &members];
            let log = self.folder.path().join(format!("log-{number}"));
            let mut program = Program::new(&self.binary, &arguments, log);
            program.environment.push(("LOCKKEEPER_LOG".to_owned(), "warn,openraft=error".to_owned()));
            node.process = Some(program.start()?);
        }
        for node in &mut self.nodes {
            let address = node.address;
            if let Some(process) = &mut node.process {
                process.wait_until(&format!("the node at {address}"), || {
                    get(address, "/readyz?verbose").contains("\"status\":\"ok\"")
                })?;
            }
        }
        Ok(())
    }

    /// The ids of the running processes.
    pub fn process_ids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.id())).collect()
    }

    fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| {
            node.process.is_some() && get(node.address, "/readyz?verbose").contains("\"role\":\"leader\"")
        })
    }

    /// Kills the leader with SIGKILL and returns the time of the kill; `None` without a leader.
    pub fn kill_leader(&mut self) -> Option<Instant> {
        let leader = self.leader()?;
        let killed_at = Instant::now();
        self.nodes[leader].process = None;
        Some(killed_at)
    }

    /// Number of commands and renewals that it has processed.
    pub fn requests(&self) -> Option<u64> {
        let running = self.nodes.iter().filter(|node| node.process.is_some());
        let text: String = running.map(|node| get(node.address, "/metrics")).collect();
        let counted = ["lockkeeper_proposer_batch_commands_sum ", "lockkeeper_keep_alives_total "];
        let figures = text.lines().filter_map(|line| {
            counted.iter().find_map(|name| line.strip_prefix(name))?.trim().parse::<f64>().ok()
        });
        (!text.is_empty()).then(|| figures.sum::<f64>() as u64)
    }
}
