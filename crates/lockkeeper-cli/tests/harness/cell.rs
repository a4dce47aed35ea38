//! A cell of real node processes.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper::{Keeper, KeeperBuilder};
use rustix::process::Signal;
use tempfile::TempDir;

use super::http::{self, Answer};
use super::network::Network;
use super::node::{Node, free_address, lockkeeper};
use super::until;

/// Serializes the tests: a second cell would compete for the CPU, and the limits on time and elections assume a machine that
/// runs one.
static SERIAL: Mutex<()> = Mutex::new(());

/// The nodes of a cell, and the network between them.
pub struct Cell {
    pub nodes: Vec<Node>,
    pub network: Network,
    /// The node that answered last.
    last_leader: AtomicU64,
    // Last: processes end before their folders are removed and before the next test begins.
    folder: TempDir,
    serial: Option<MutexGuard<'static, ()>>,
}

impl Cell {
    /// Creates nodes without starting them.
    pub fn plan(count: u64) -> Cell {
        Cell::plan_serialized(count, Some(SERIAL.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The same in a test that already has a cell, whose nodes are down.
    pub fn plan_after(earlier: &mut Cell, count: u64) -> Cell {
        assert!(earlier.nodes.iter().all(|node| !node.is_running()));
        Cell::plan_serialized(count, earlier.serial.take())
    }

    fn plan_serialized(count: u64, serial: Option<MutexGuard<'static, ()>>) -> Cell {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cell = Cell {
            nodes: Vec::new(),
            network: Network::new(),
            last_leader: AtomicU64::default(),
            folder,
            serial,
        };
        for id in 1..=count {
            cell.plan_node(id);
        }
        cell
    }

    /// The same with a network whose links can be cut.
    pub async fn plan_with_network(count: u64) -> Cell {
        let mut cell = Cell::plan(0);
        for id in 1..=count {
            cell.plan_node_with_network(id).await;
        }
        cell
    }

    /// Adds a node behind a proxy.
    pub async fn plan_node_with_network(&mut self, id: u64) {
        let (address, listen_addr) = (free_address(7420), free_address(7421));
        self.network.proxy(id, &address, &listen_addr).await;
        self.nodes.push(Node::new(id, listen_addr, address, self.folder.path()));
    }

    /// Adds a node.
    pub fn plan_node(&mut self, id: u64) {
        let address = free_address(7420);
        self.nodes.push(Node::new(id, address.clone(), address, self.folder.path()));
    }

    /// Starts a cell, and waits until all nodes follow one leader.
    pub async fn start(count: u64) -> Cell {
        let mut cell = Cell::plan(count);
        cell.spawn_all();
        cell.until_agreed().await;
        cell
    }

    /// The same with a network whose links can be cut.
    pub async fn start_with_network(count: u64) -> Cell {
        let mut cell = Cell::plan_with_network(count).await;
        cell.spawn_all();
        cell.until_agreed().await;
        cell
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn node(&self, id: u64) -> &Node {
        self.nodes.iter().find(|node| node.id == id).expect("such a node")
    }

    pub fn node_mut(&mut self, id: u64) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.id == id).expect("such a node")
    }

    /// The list for `--cell`.
    pub fn list(&self) -> String {
        let members: Vec<_> = self.nodes.iter().map(|node| format!("{}={}", node.id, node.address)).collect();
        members.join(",")
    }

    /// The URL with all hosts.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| node.address.clone()).collect();
        format!("lockkeeper://{}", hosts.join(","))
    }

    /// Starts a node with the list of all members.
    pub fn spawn(&mut self, id: u64) {
        let list = self.list();
        self.spawn_with(id, &["--cell", &list]);
    }

    pub fn spawn_with(&mut self, id: u64, words: &[&str]) {
        let network = self.network.clone();
        let node = self.node_mut(id);
        network.start(id, || node.spawn(words));
    }

    pub fn spawn_all(&mut self) {
        for id in self.nodes.iter().filter(|node| !node.is_running()).map(|node| node.id).collect::<Vec<_>>()
        {
            self.spawn(id);
        }
    }

    pub fn kill(&mut self, id: u64) {
        self.node_mut(id).kill();
    }

    /// Pauses a node with SIGSTOP.
    pub fn stop(&self, id: u64) {
        self.node(id).signal(Signal::STOP);
    }

    /// Resumes a node with SIGCONT.
    pub fn resume(&self, id: u64) {
        self.node(id).signal(Signal::CONT);
    }

    /// Waits for a leader with a quorum, and returns its id.
    pub async fn leader(&self) -> u64 {
        self.leader_among(&self.nodes.iter().map(|node| node.id).collect::<Vec<_>>()).await
    }

    /// The same among these nodes: others may be paused or cut off.
    pub async fn leader_among(&self, ids: &[u64]) -> u64 {
        until(&format!("a leader among {ids:?}"), async || {
            let mut best = None;
            for node in self.nodes.iter().filter(|node| node.is_running() && ids.contains(&node.id)) {
                best = best.max(node.leading_term().await.map(|term| (term, node.id)));
            }
            best.map(|(_, id)| id)
        })
        .await
    }

    /// Waits until all running nodes follow the same leader, and returns its id.
    pub async fn until_agreed(&self) -> u64 {
        until("all nodes to follow one leader", async || {
            let leader = self.leader().await;
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                (node.status().await?["leader"] == leader).then_some(())?;
            }
            Some(leader)
        })
        .await
    }

    /// The ids of all other nodes.
    pub fn others(&self, id: u64) -> Vec<u64> {
        self.nodes.iter().map(|node| node.id).filter(|other| *other != id).collect()
    }

    /// Waits until these nodes have applied the same last entry.
    pub async fn until_in_sync(&self, ids: &[u64]) {
        until(&format!("nodes {ids:?} to be in sync"), async || {
            let mut seen = Vec::new();
            for id in ids {
                let status = self.node(*id).status().await?;
                seen.push((status["applied_index"].as_u64()?, status["last_token"].as_u64()?));
            }
            seen.windows(2).all(|pair| pair[0] == pair[1]).then_some(())
        })
        .await;
    }

    /// Connects a client with the URL of all nodes.
    pub async fn keeper(&self, builder: KeeperBuilder) -> Keeper {
        builder.connect(&self.url()).await.expect("the cell answers")
    }

    pub async fn post(&self, id: u64, path: &str, body: serde_json::Value) -> Answer {
        let node = self.node(id);
        http::post(&node.listen_addr, path, &body)
            .await
            .unwrap_or_else(|error| panic!("node {id}: {path}: {error}"))
    }

    pub async fn get(&self, id: u64, path: &str) -> Answer {
        let node = self.node(id);
        http::get(&node.listen_addr, path).await.unwrap_or_else(|error| panic!("node {id}: {path}: {error}"))
    }

    /// The value of a metric of a node: of its first line, if the name has no labels.
    pub async fn find_metric(&self, id: u64, name: &str) -> Option<f64> {
        let page = self.get(id, "/metrics").await.body;
        let mut lines = page.as_str()?.lines();
        let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        lines.find(is_it)?.rsplit(' ').next()?.parse().ok()
    }

    /// The same for a metric that is always there.
    pub async fn metric(&self, id: u64, name: &str) -> f64 {
        self.find_metric(id, name).await.unwrap_or_else(|| panic!("node {id} has no metric {name}"))
    }

    /// Calls the leader, and retries until a node answers for the cell: on a busy machine a leader may be late for a moment.
    /// For idempotent calls only.
    pub async fn call(&self, path: &str, body: Option<&serde_json::Value>) -> serde_json::Value {
        until(&format!("an answer to {path}"), async || {
            let known = self.last_leader.load(Ordering::Relaxed);
            let mut nodes: Vec<_> = self.nodes.iter().filter(|node| node.is_running()).collect();
            nodes.sort_by_key(|node| node.id != known);
            for node in nodes {
                let answer = async {
                    match body {
                        Some(body) => http::post(&node.listen_addr, path, body).await,
                        None => http::get(&node.listen_addr, path).await,
                    }
                };
                let answer = tokio::time::timeout(Duration::from_secs(1), answer).await;
                if let Ok(Ok(answer)) = answer
                    && !matches!(answer.status, 421 | 503)
                {
                    self.last_leader.store(node.id, Ordering::Relaxed);
                    return Some(answer);
                }
            }
            None
        })
        .await
        .ok()
    }

    /// Reads from the leader.
    pub async fn read(&self, path: &str) -> serde_json::Value {
        self.call(path, None).await
    }

    /// Runs the CLI with arguments against this cell.
    pub async fn cli(&self, words: &[&str]) -> Output {
        self.cli_at(&self.url(), words).await
    }

    pub async fn cli_at(&self, url: &str, words: &[&str]) -> Output {
        let mut command = tokio::process::Command::from(lockkeeper());
        command.args(words).env("LOCKKEEPER_ENGINE", url).current_dir(self.folder.path());
        command.output().await.expect("setpriv (util-linux) starts the binary")
    }

    /// The same for a command that must succeed; returns its JSON output.
    pub async fn json(&self, words: &[&str]) -> serde_json::Value {
        let mut words = words.to_vec();
        words.extend(["--output", "json"]);
        let output = self.cli(&words).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
