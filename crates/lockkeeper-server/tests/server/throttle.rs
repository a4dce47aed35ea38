//! The leader slows down for a lagging follower, but not for one that has lagged for long (docs/adr/0022-followers.md).

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_server::raft::log::{Faults, FaultyDisk, LogConfig};
use lockkeeper_server::{Node, NodeConfig};

use crate::http::Client;
use crate::support::{leader, put, start_cell, until};

/// A follower that has lagged for this long counts as down.
const DOWN_AFTER: Duration = Duration::from_secs(5);

/// Returns how long the leader has paused before entries.
async fn paused_seconds(node: &Node) -> f64 {
    let scraped = Client { address: node.address().expect("it listens") }.get("/metrics").await;
    let text = String::from_utf8(scraped.body).expect("text");
    let line = text.lines().find(|line| line.starts_with("lockkeeper_proposal_pause_seconds_total "));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("the metric")
}

/// Writes entries one after the other. Returns how long the leader paused before them.
async fn write(node: &Node, entries: usize) -> f64 {
    let before = paused_seconds(node).await;
    for _ in 0..entries {
        assert!(put(node, "k", 1).await);
    }
    paused_seconds(node).await - before
}

#[tokio::test(flavor = "current_thread")]
async fn leader_waits_for_a_lagging_follower_until_it_counts_as_down() {
    let folder = tempfile::tempdir().unwrap();
    let disks: Vec<FaultyDisk> = (0..3).map(|_| FaultyDisk::new()).collect();
    let nodes = start_cell(|id, config| NodeConfig {
        data_dir: Some(folder.path().join(id.to_string())),
        // Small segments: the log has two of them when its disk is full.
        log: LogConfig { segment_bytes: 64 << 10, ..NodeConfig::durable("").log },
        log_disk: Some(Arc::new(disks[id as usize - 1].clone())),
        ..config
    })
    .await;
    let leads = leader(&nodes).await;
    let node = &nodes[leads];
    // On a busy machine a follower may lag for a moment.
    until("the leader not to wait", async || (write(node, 50).await == 0.0).then_some(())).await;

    // A follower without disk space refuses entries but answers heartbeats: it lags, but is not silent.
    let lagging = (leads + 1) % 3;
    disks[lagging].set_faults(Faults { capacity_bytes: Some(0), ..Faults::default() });
    let began = Instant::now();
    let paused = until("the leader to wait for the follower", async || {
        let paused = write(node, 50).await;
        (paused > 0.0).then_some(paused)
    })
    .await;
    let engaged = began.elapsed();
    // Each of the 50 entries is delayed once the follower lags by more than 512.
    let paused_more = write(node, 50).await;
    assert!(paused_more >= 40.0 * 0.002, "{paused_more} s for 50 entries");

    until("the leader to give the follower up", async || (write(node, 50).await == 0.0).then_some(())).await;
    let given_up = began.elapsed();
    assert!(given_up >= DOWN_AFTER, "after {given_up:?}");
    let lag = |node: &Node| {
        let members = node.api().status().members;
        members.iter().find(|member| member.node_id == lagging as u64 + 1).and_then(|member| member.lag)
    };
    println!(
        "waited from {engaged:?} on ({paused} s, then {paused_more} s for 50 entries), given up after {given_up:?} with a lag of {:?}",
        lag(node)
    );
    assert!(lag(node).is_some_and(|lag| lag > 512), "it has caught up");

    disks[lagging].set_faults(Faults::default());
    until("the follower to catch up", async || lag(node).filter(|lag| *lag == 0)).await;
    for node in nodes {
        node.stop().await;
    }
}
