//! Cells of nodes in one process, for unit tests, integration tests and tests of other crates.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_core::{Command, Reply};
use lockkeeper_server::raft::Timing;
use lockkeeper_server::{Node, NodeConfig};
use tokio::net::TcpListener;

/// Timeout that is never reached on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Timing for several nodes on one thread, for which the presets are too short.
pub const PATIENT: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(500),
    election_max: Duration::from_millis(1_000),
};

/// Fails with the remedy, or skips if `LOCKKEEPER_TESTS_MAY_SKIP` is set: a skipped test looks like a passed one.
#[track_caller]
pub fn skip_or_fail(what: &str, remedy: &str) {
    const MAY_SKIP: &str = "LOCKKEEPER_TESTS_MAY_SKIP";
    assert!(
        std::env::var_os(MAY_SKIP).is_some(),
        "{what}: {remedy}, or set {MAY_SKIP}=1 to skip the tests that need it"
    );
    eprintln!("SKIPPED: {what}");
}

/// Polls until a value is available.
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

/// Returns an unused address.
pub async fn free_address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    free.local_addr().expect("its address").to_string()
}

/// Returns unused addresses for these nodes.
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

/// Returns the position of the leader.
pub fn find_leader(nodes: &[Node]) -> Option<usize> {
    nodes.iter().position(|node| node.api().ready().is_ok() && node.api().check_leads().is_ok())
}

/// Waits for a node that leads.
pub async fn leader(nodes: &[Node]) -> usize {
    until("a leader", async || find_leader(nodes)).await
}

/// Returns a command that writes a value of this size.
pub fn put_command(key: &str, bytes: usize) -> Command {
    Command::PutValue { key: key.into(), value: vec![b'x'; bytes].into(), fence: None, if_version: None }
}

/// Writes a value through this node, if it leads.
pub async fn put(node: &Node, key: &str, bytes: usize) -> bool {
    matches!(node.api().command(put_command(key, bytes)).await, Ok(Reply::Put { .. }))
}
