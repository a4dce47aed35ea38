//! An idle cell: nothing happens between its members but heartbeats on connections that last.

use std::time::{Duration, Instant};

use crate::harness::cell::Cell;
use crate::harness::until;

const WATCHED: Duration = Duration::from_secs(3);
const LOOKS: usize = 5;
const COUNTERS: [&str; 5] = [
    "lockkeeper_member_connections_opened_total",
    "lockkeeper_member_connections_accepted_total",
    "lockkeeper_elections_triggered_total",
    "lockkeeper_pre_votes_requested_total",
    "lockkeeper_wal_fsync_seconds_count",
];

/// The counters of all nodes.
async fn counted(cell: &Cell) -> Vec<[u64; 5]> {
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
async fn an_idle_cell_opens_no_connections_begins_no_elections_and_writes_nothing() {
    let cell = Cell::start(3).await;
    // Each node has a connection to each other one, and no more.
    until("all connections", async || {
        let counted = counted(&cell).await;
        counted.iter().all(|[opened, accepted, ..]| *opened >= 2 && *accepted >= 2).then_some(())
    })
    .await;
    // On a busy machine a heartbeat may be late once in a while; where something happens all the time, no look is quiet.
    for look in 1..=LOOKS {
        let (before, began) = (counted(&cell).await, Instant::now());
        tokio::time::sleep(WATCHED).await;
        let after = counted(&cell).await;
        println!("in {:?}: {before:?} became {after:?} {COUNTERS:?}", began.elapsed());
        if before == after {
            return;
        }
        assert!(look < LOOKS, "{LOOKS} times something happened within {WATCHED:?}: {COUNTERS:?}");
    }
}

#[tokio::test]
async fn one_attempt_follows_the_end_of_a_leader() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let before: u64 = counted(&cell).await.iter().map(|[_, _, attempts, ..]| attempts).sum();
    cell.kill(leader);
    let others = cell.others(leader);
    cell.leader_among(&others).await;
    cell.nodes.retain(|node| node.id != leader);
    let after: u64 = counted(&cell).await.iter().map(|[_, _, attempts, ..]| attempts).sum();
    println!("{} attempts", after - before);
    // Each follower tries once. On a busy machine an attempt may fail and be made again; it once was some hundred a second.
    assert!((0..=10).contains(&(after - before)), "{before} attempts before, {after} after");
}
