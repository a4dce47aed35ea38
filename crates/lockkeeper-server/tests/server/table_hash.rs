//! Members whose lock tables differ (S13): the one in the minority stops serving and says so.
#![cfg(feature = "simulation")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_core::{Command, Reply};
use lockkeeper_server::raft::Timing;
use lockkeeper_server::{Node, NodeConfig};
use tokio::net::TcpListener;

const LONG: Duration = Duration::from_secs(60);
/// Three nodes on one thread, which is not what elections are timed for.
const PATIENT: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(500),
    election_max: Duration::from_millis(1_000),
};

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(thing) = look().await {
            return thing;
        }
        assert!(began.elapsed() < LONG, "waited {LONG:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn put(node: &Node) -> bool {
    let command =
        Command::PutValue { key: "k".into(), value: b"v".as_slice().into(), fence: None, if_version: None };
    matches!(node.calls().command(command).await, Ok(Reply::Put { .. }))
}

async fn cell(folder: &std::path::Path) -> Vec<Node> {
    let mut members = BTreeMap::new();
    for id in 1..=3 {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        members.insert(id, free.local_addr().unwrap().to_string());
    }
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let config = NodeConfig {
            node_id: Some(id),
            listen: Some(members[&id].clone()),
            members: members.clone(),
            timing: PATIENT,
            ..NodeConfig::durable(folder.join(id.to_string()))
        };
        nodes.push(Node::open(config).await.unwrap());
    }
    nodes
}

fn leader(nodes: &[Node]) -> Option<usize> {
    nodes.iter().position(|node| node.calls().ready().is_ok())
}

/// Writes until the cell has noticed something, through whoever leads.
async fn until_noticed(nodes: &[Node], damaged: usize) {
    until("the difference to be noticed", async || {
        if let Some(leader) = leader(nodes) {
            put(&nodes[leader]).await;
        }
        nodes[damaged].calls().status().disagreement.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_follower_whose_table_differs_stops_and_the_others_serve() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cell(folder.path()).await;
    let leads = until("a leader", async || leader(&nodes)).await;
    assert!(put(&nodes[leads]).await);
    let damaged = (leads + 1) % 3;
    nodes[damaged].calls().make_table_different();
    until_noticed(&nodes, damaged).await;
    let status = nodes[damaged].calls().status();
    let found = status.disagreement.expect("it was noticed");
    assert_ne!(found.own_hash, found.other_hash);
    let refused = nodes[damaged].calls().ready().expect_err("it does not serve").to_string();
    assert!(refused.contains(&format!("{:016x}", found.own_hash)), "{refused}");
    assert!(refused.contains(&format!("{:016x}", found.other_hash)), "{refused}");
    // The others serve, and the leader shows it.
    let node = until("a leader", async || leader(&nodes)).await;
    assert_ne!(node, damaged);
    until("a write", async || put(&nodes[node]).await.then_some(())).await;
    until("the leader to show it", async || {
        let members = nodes[node].calls().status().members;
        members
            .iter()
            .any(|member| member.node_id == damaged as u64 + 1 && member.disagreement.is_some())
            .then_some(())
    })
    .await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_leader_whose_table_differs_stops_and_another_one_leads() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cell(folder.path()).await;
    let damaged = until("a leader", async || leader(&nodes)).await;
    assert!(put(&nodes[damaged]).await);
    nodes[damaged].calls().make_table_different();
    until_noticed(&nodes, damaged).await;
    let next = until("another leader", async || leader(&nodes)).await;
    assert_ne!(next, damaged);
    until("a write", async || put(&nodes[next]).await.then_some(())).await;
    assert!(nodes[damaged].calls().ready().is_err());
    for node in nodes {
        node.stop().await;
    }
}
