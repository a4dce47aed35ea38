//! A member with a full disk still votes: a leader is elected, and the cell continues as soon as there is space.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_server::raft::log::{Faults, FaultyDisk};
use lockkeeper_server::{Node, NodeConfig};
use tokio::task::JoinSet;

use crate::support::{find_leader, leader, put_command, start_cell, until};

const VALUE_BYTES: usize = 60_000;
/// Concurrent writers. Together they have more in flight than the space reserved for votes.
const WRITERS: usize = 200;
/// The disk of a follower is full when so many rounds of writes bring nothing to its log.
const UNCHANGED_ROUNDS: usize = 3;

/// Makes many concurrent writes and waits until all are answered.
async fn write_many(node: &Node, round: usize) {
    let mut writes = JoinSet::new();
    for number in 0..WRITERS {
        let api = node.api().clone();
        let put = put_command(&format!("{round}-{number}"), VALUE_BYTES);
        writes.spawn(async move { api.command(put).await.is_ok() });
    }
    writes.join_all().await;
}

#[tokio::test(flavor = "current_thread")]
async fn full_disk_does_not_delay_votes() {
    let folder = tempfile::tempdir().unwrap();
    let disks: Vec<FaultyDisk> = (0..3).map(|_| FaultyDisk::new()).collect();
    let mut nodes = start_cell(|id, config| NodeConfig {
        data_dir: Some(folder.path().join(id.to_string())),
        log: NodeConfig::durable("").log,
        log_disk: Some(Arc::new(disks[id as usize - 1].clone())),
        ..config
    })
    .await;
    let leads = leader(&nodes).await;
    let full = (leads + 1) % 3;
    // Entries that arrive during a slow sync are queued, so that many are in flight when the last segment ends.
    disks[full].set_faults(Faults {
        capacity_bytes: Some(0),
        sync_delay: Duration::from_millis(30),
        ..Faults::default()
    });
    let mut round = 0;
    // A busy machine also makes a follower lag, so its log must not grow over whole rounds of writes.
    let mut last_log_index = None;
    let mut unchanged_rounds = 0;
    until("the follower to refuse entries", async || {
        write_many(&nodes[leads], round).await;
        round += 1;
        let now = nodes[full].api().status().last_log_index;
        unchanged_rounds = if last_log_index.replace(now) == Some(now) { unchanged_rounds + 1 } else { 0 };
        (unchanged_rounds >= UNCHANGED_ROUNDS).then_some(())
    })
    .await;

    // The third node has all entries, and needs the vote of the node with the full disk.
    let third = (leads + 2) % 3;
    until("the third node to have everything", async || {
        let (ahead, third) = (nodes[leads].api().status(), nodes[third].api().status());
        (third.last_log_index == ahead.last_log_index).then_some(())
    })
    .await;
    let (third, full) = (third as u64 + 1, full as u64 + 1);
    nodes.remove(leads).stop().await;
    let node = |id: u64| nodes.iter().find(|node| node.api().status().node_id == id).expect("it runs");
    until("the third node to be elected, although a disk is full", async || {
        [third, full].iter().all(|id| node(*id).api().status().leader == Some(third)).then_some(())
    })
    .await;
    // The space that the full disk keeps is enough for the first entry of the new leader, and for releases.
    until("the third node to serve", async || find_leader(&nodes)).await;
    disks[full as usize - 1].set_faults(Faults::default());
    until("writes to be accepted", async || {
        let api = nodes[find_leader(&nodes)?].api().clone();
        api.command(put_command("after", 1)).await.is_ok().then_some(())
    })
    .await;
}
