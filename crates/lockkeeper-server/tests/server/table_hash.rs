//! Members whose lock tables differ (S13): the minority stops serving and reports it.
#![cfg(feature = "simulation")]

use lockkeeper_server::{Node, NodeConfig};

use crate::support::{find_leader, leader, put, start_cell, until};

async fn cell(folder: &std::path::Path) -> Vec<Node> {
    start_cell(|id, config| NodeConfig {
        data_dir: Some(folder.join(id.to_string())),
        log: NodeConfig::durable("").log,
        ..config
    })
    .await
}

/// Writes through the current leader until the damaged node notices the difference.
async fn until_noticed(nodes: &[Node], damaged: usize) {
    until("the difference to be noticed", async || {
        if let Some(leader) = find_leader(nodes) {
            put(&nodes[leader], "k", 1).await;
        }
        nodes[damaged].api().status().disagreement.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn follower_with_a_different_table_stops_and_the_others_serve() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cell(folder.path()).await;
    let leads = leader(&nodes).await;
    assert!(put(&nodes[leads], "k", 1).await);
    let damaged = (leads + 1) % 3;
    nodes[damaged].api().make_table_different();
    until_noticed(&nodes, damaged).await;
    let status = nodes[damaged].api().status();
    let found = status.disagreement.expect("it was noticed");
    assert_ne!(found.own_hash, found.other_hash);
    let refused = nodes[damaged].api().ready().expect_err("it does not serve").to_string();
    assert!(refused.contains(&found.own_hash.to_string()), "{refused}");
    assert!(refused.contains(&found.other_hash.to_string()), "{refused}");
    // The others serve, and the leader reports the difference.
    let node = leader(&nodes).await;
    assert_ne!(node, damaged);
    until("a write", async || put(&nodes[node], "k", 1).await.then_some(())).await;
    until("the leader to show it", async || {
        let members = nodes[node].api().status().members;
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
async fn leader_with_a_different_table_stops_and_another_node_leads() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cell(folder.path()).await;
    let damaged = leader(&nodes).await;
    assert!(put(&nodes[damaged], "k", 1).await);
    nodes[damaged].api().make_table_different();
    until_noticed(&nodes, damaged).await;
    let next = leader(&nodes).await;
    assert_ne!(next, damaged);
    until("a write", async || put(&nodes[next], "k", 1).await.then_some(())).await;
    assert!(nodes[damaged].api().ready().is_err());
    for node in nodes {
        node.stop().await;
    }
}
