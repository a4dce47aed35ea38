//! Cells of nodes in one process, for unit tests, integration tests and tests of other crates.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_core::{Command, Reply};
use lockkeeper_server::raft::Timing;
use lockkeeper_server::{Node, NodeConfig};
use tokio::net::TcpListener;

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// For several nodes on one thread, which is not what the presets are made for.
pub const PATIENT: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(500),
    election_max: Duration::from_millis(1_000),
};

/// Polls for a thing until it is there.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(thing) = look().await {
            return thing;
        }
        assert!(began.elapsed() < LONG, "waited {LONG:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An address that nobody uses.
pub async fn free_address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    free.local_addr().expect("its address").to_string()
}

/// Addresses for these nodes.
pub async fn addresses(ids: impl IntoIterator<Item = u64>) -> BTreeMap<u64, String> {
    let mut members = BTreeMap::new();
    for id in ids {
        members.insert(id, free_address().await);
    }
    members
}

/// Starts three nodes, 1 to 3. `adjust` gets the settings of each.
pub async fn start_cell(adjust: impl Fn(u64, NodeConfig) -> NodeConfig) -> Vec<Node> {
    let members = addresses(1..=3).await;
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let config = NodeConfig {
            node_id: Some(id),
            listen: Some(members[&id].clone()),
            members: members.clone(),
            timing: PATIENT,
            ..NodeConfig::in_memory()
        };
        nodes.push(Node::open(adjust(id, config)).await.expect("a node"));
    }
    nodes
}

/// The place of the node that leads.
pub fn find_leader(nodes: &[Node]) -> Option<usize> {
    nodes.iter().position(|node| node.api().ready().is_ok() && node.api().may_answer().is_ok())
}

/// Waits for a node that leads.
pub async fn leader(nodes: &[Node]) -> usize {
    until("a leader", async || find_leader(nodes)).await
}

/// A write of a value with so many bytes.
pub fn put_command(key: &str, bytes: usize) -> Command {
    Command::PutValue { key: key.into(), value: vec![b'x'; bytes].into(), fence: None, if_version: None }
}

/// Writes a value through this node, if it leads.
pub async fn put(node: &Node, key: &str, bytes: usize) -> bool {
    matches!(node.api().command(put_command(key, bytes)).await, Ok(Reply::Put { .. }))
}
