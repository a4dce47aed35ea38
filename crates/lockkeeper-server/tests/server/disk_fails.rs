//! Disks that fail, and a restart on a full one.

use std::sync::Arc;

use lockkeeper_api::Code;
use lockkeeper_core::{Acquire, Command, Locks, Reply};
use lockkeeper_server::raft::log::{Faults, FaultyDisk};
use lockkeeper_server::{Node, NodeConfig};

use crate::support::{LONG, leader, put, start_cell, until};

const VALUE_BYTES: usize = 60_000;

/// A failed fdatasync leaves open what is on the disk, and a second one would not tell. So the node must end, with the reason.
#[tokio::test(flavor = "current_thread")]
async fn node_whose_sync_fails_ends_with_the_reason_and_the_others_continue() {
    let folder = tempfile::tempdir().unwrap();
    let disks: Vec<FaultyDisk> = (0..3).map(|_| FaultyDisk::new()).collect();
    let mut nodes = start_cell(|id, config| NodeConfig {
        data_dir: Some(folder.path().join(id.to_string())),
        log: NodeConfig::durable("").log,
        log_disk: Some(Arc::new(disks[id as usize - 1].clone())),
        ..config
    })
    .await;
    let failing = leader(&nodes).await;
    assert!(put(&nodes[failing], "k", 1).await);
    disks[failing].set_faults(Faults { syncs_left: Some(0), ..Faults::default() });
    // Acknowledged or not: the followers have it, too.
    let _ = tokio::time::timeout(LONG, put(&nodes[failing], "k", 2)).await;
    let why = tokio::time::timeout(LONG, nodes[failing].ended()).await.expect("the node ends");
    assert!(why.contains("sync"), "the reason: {why}");
    assert!(nodes[failing].api().ready().is_err());
    nodes.remove(failing);
    until("another leader", async || {
        for node in &nodes {
            if put(node, "k", 3).await {
                return Some(());
            }
        }
        None
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn node_restarted_on_a_full_disk_starts_says_so_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let config =
        || NodeConfig { log_disk: Some(Arc::new(disk.clone())), ..NodeConfig::durable(folder.path()) };
    let node = Node::start(config()).await.unwrap();
    let (session, _) = node.api().open_session(600_000, "test".into()).await.unwrap();
    let held = node.api().acquire(Acquire::new(session, Locks::One("held".into()))).await.unwrap();
    disk.set_faults(Faults { capacity_bytes: Some(0), ..Faults::default() });
    while put(&node, "k", VALUE_BYTES).await {}
    node.stop().await;

    let node = Node::start(config()).await.expect("it starts on a full disk");
    let trouble = until("the node to say so", async || node.api().status().trouble).await;
    assert!(trouble.contains("no space left"), "{trouble}");
    let refused = node.api().acquire(Acquire::new(session, Locks::One("other".into()))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(!put(&node, "k", 1).await);
    let release = Command::Release { session, lock: "held".into(), token: held.token, forget: false };
    assert_eq!(node.api().command(release).await, Ok(Reply::Done), "a release works");

    disk.set_faults(Faults::default());
    until("writes", async || put(&node, "k", 1).await.then_some(())).await;
    until("no trouble", async || node.api().status().trouble.is_none().then_some(())).await;
    let again = node.api().acquire(Acquire::new(session, Locks::One("held".into()))).await.unwrap();
    assert!(again.token > held.token);
    node.stop().await;
}
