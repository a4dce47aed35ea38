//! An idle cell exchanges only heartbeats, on lasting connections.

use std::time::{Duration, Instant};

use crate::harness::cell::Cell;
use crate::harness::{attempts, until};

const OBSERVED: Duration = Duration::from_secs(3);
const ATTEMPTS: usize = 5;
const COUNTERS: [&str; 5] = [
    "lockkeeper_member_connections_opened_total",
    "lockkeeper_member_connections_accepted_total",
    "lockkeeper_elections_triggered_total",
    "lockkeeper_pre_votes_requested_total",
    "lockkeeper_wal_fsync_seconds_count",
];

/// Reads the counters of all nodes.
async fn read_counters(cell: &Cell) -> Vec<[u64; 5]> {
    let mut all = Vec::new();
    for node in &cell.nodes {
        let page = cell.get(node.id, "/metrics").await.body;
        let page = page.as_str().unwrap().to_owned();
        all.push(COUNTERS.map(|name| {
            let line =
                page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        }));
    }
    all
}

#[tokio::test]
async fn idle_cell_opens_no_connections_starts_no_elections_and_writes_nothing() {
    let cell = Cell::start(3).await;
    // Each node has one connection to each other node.
    until("all connections", async || {
        let counters = read_counters(&cell).await;
        counters.iter().all(|[opened, accepted, ..]| *opened >= 2 && *accepted >= 2).then_some(())
    })
    .await;
    // On a busy machine a heartbeat is late now and then, so one quiet attempt is enough.
    attempts(ATTEMPTS, async || {
        let (before, began) = (read_counters(&cell).await, Instant::now());
        tokio::time::sleep(OBSERVED).await;
        let after = read_counters(&cell).await;
        match before == after {
            true => Ok(()),
            false => Err(format!("in {:?}: {before:?} became {after:?} {COUNTERS:?}", began.elapsed())),
        }
    })
    .await;
}

#[tokio::test]
async fn killed_leader_causes_one_election_attempt_per_follower() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let before: u64 = read_counters(&cell).await.iter().map(|[_, _, attempts, ..]| attempts).sum();
    cell.kill(leader);
    let others = cell.others(leader);
    cell.leader_among(&others).await;
    cell.nodes.retain(|node| node.id != leader);
    let after: u64 = read_counters(&cell).await.iter().map(|[_, _, attempts, ..]| attempts).sum();
    println!("{} attempts", after - before);
    // Each follower tries once. On a busy machine an attempt may fail and be repeated; a former bug made hundreds per second.
    assert!((0..=10).contains(&(after - before)), "{before} attempts before, {after} after");
}
