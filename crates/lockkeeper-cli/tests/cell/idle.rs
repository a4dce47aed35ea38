//! An idle cell exchanges only heartbeats, on lasting connections.

use std::time::{Duration, Instant};

use crate::harness::cell::Cell;
use crate::harness::{attempts, until};

const OBSERVED: Duration = Duration::from_secs(3);
const ATTEMPTS: usize = 5;
/// Longer than an election timeout.
const ATTEMPTS_END_WITHIN: Duration = Duration::from_millis(500);
const ALL: [u64; 3] = [1, 2, 3];
const COUNTERS: [&str; 5] = [
    "lockkeeper_member_connections_opened_total",
    "lockkeeper_member_connections_accepted_total",
    "lockkeeper_elections_triggered_total",
    "lockkeeper_pre_votes_requested_total",
    "lockkeeper_wal_fsync_seconds_count",
];

/// Reads the counters of these nodes.
async fn read_counters(cell: &Cell, nodes: &[u64]) -> Vec<[u64; 5]> {
    let mut all = Vec::new();
    for id in nodes {
        let page = cell.get(*id, "/metrics").await.body;
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
        let counters = read_counters(&cell, &ALL).await;
        counters.iter().all(|[opened, accepted, ..]| *opened >= 2 && *accepted >= 2).then_some(())
    })
    .await;
    // On a busy machine a heartbeat is late now and then, so one quiet attempt is enough.
    attempts(ATTEMPTS, async || {
        let (before, began) = (read_counters(&cell, &ALL).await, Instant::now());
        tokio::time::sleep(OBSERVED).await;
        let after = read_counters(&cell, &ALL).await;
        match before == after {
            true => Ok(()),
            false => Err(format!("in {:?}: {before:?} became {after:?} {COUNTERS:?}", began.elapsed())),
        }
    })
    .await;
}

/// Number of election attempts of all nodes but one. Their counters survive as long as their processes.
async fn attempts_without(cell: &Cell, id: u64) -> u64 {
    let counters = read_counters(cell, &cell.others(id)).await;
    counters.iter().map(|[_, _, attempts, ..]| attempts).sum()
}

/// Each follower may try once, and the first success spares the second one its attempt. A former bug made hundreds per second.
#[tokio::test]
async fn killed_leader_causes_at_most_one_election_attempt_per_follower() {
    let mut cell = Cell::start(3).await;
    // On a busy machine an attempt may fail and be repeated.
    attempts(ATTEMPTS, async || {
        let leader = cell.until_agreed().await;
        let before = attempts_without(&cell, leader).await;
        cell.kill(leader);
        cell.until_agreed().await;
        // Attempts that are still scheduled would be made by now.
        tokio::time::sleep(ATTEMPTS_END_WITHIN).await;
        let attempts = attempts_without(&cell, leader).await - before;
        println!("{attempts} attempts");
        cell.spawn(leader);
        match attempts {
            1 | 2 => Ok(()),
            _ => Err(format!("{attempts} election attempts")),
        }
    })
    .await;
}
