//! A cell: `lockkeeper serve` as real processes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tempfile::TempDir;

use crate::error::ServerError;
use crate::http::get;
use crate::process::{Process, Program, folder};
use crate::{Servers, Signal, free_address};

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

    /// The number of the node that leads, counted from 0.
    pub fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| {
            node.process.is_some() && get(node.address, "/readyz?verbose").contains("\"role\":\"leader\"")
        })
    }
}

impl Cell {
    /// Sends a signal to a node, counted from 0.
    pub fn signal(&self, node: usize, signal: Signal) {
        if let Some(process) = &self.nodes[node].process {
            process.signal(signal);
        }
    }
}

impl Servers for Cell {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    fn kill(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.process = None);
    }

    fn restart(&mut self) -> Result<(), ServerError> {
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

    fn kill_leader(&mut self) -> Option<Instant> {
        let leader = self.leader()?;
        let killed_at = Instant::now();
        self.nodes[leader].process = None;
        Some(killed_at)
    }

    fn process_ids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.id())).collect()
    }

    /// Number of commands and renewals that it has processed.
    fn requests(&self) -> Option<u64> {
        let running = self.nodes.iter().filter(|node| node.process.is_some());
        let text: String = running.map(|node| get(node.address, "/metrics")).collect();
        let counted = ["lockkeeper_proposer_batch_commands_sum ", "lockkeeper_keep_alives_total "];
        let figures = text.lines().filter_map(|line| {
            counted.iter().find_map(|name| line.strip_prefix(name))?.trim().parse::<f64>().ok()
        });
        (!text.is_empty()).then(|| figures.sum::<f64>() as u64)
    }

    fn request_unit(&self) -> &'static str {
        "requests, by its /metrics"
    }
}
