//! Random kills, pauses and cuts while clients acquire locks, hold them and write under their tokens. Afterwards the checkers
//! verify that nothing was lost, granted twice, or held by two.
//!
//! LOCKKEEPER_FAULT_SECONDS sets the duration (60), LOCKKEEPER_SEED the faults; both are printed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "faults/client.rs"]
mod client;
#[path = "faults/direct.rs"]
mod direct;
mod harness;
#[path = "faults/nemesis.rs"]
mod nemesis;
#[path = "faults/recorder.rs"]
mod recorder;

use std::time::{Duration, Instant};

use lockkeeper_lab::checkers;
use tokio::task::JoinSet;

use harness::cell::Cell;
use harness::random::Random;
use harness::until;
use recorder::Recorder;

const LIBRARY_CLIENTS: u32 = 6;
const DIRECT_CLIENTS: u32 = 2;
/// Few, so that clients contend.
pub(crate) const LOCKS: [&str; 4] = ["red", "green", "blue", "white"];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[tokio::test]
async fn random_faults_violate_no_guarantee() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = from_environment("LOCKKEEPER_SEED").unwrap_or(now % 1_000_000_000);
    let seconds = from_environment("LOCKKEEPER_FAULT_SECONDS").unwrap_or(60);
    println!("LOCKKEEPER_SEED={seed} LOCKKEEPER_FAULT_SECONDS={seconds}");
    let mut random = Random::new(seed);
    let mut cell = Cell::plan_with_network(3).await;
    for node in &mut cell.nodes {
        // Frequent snapshots, so that some faults hit them.
        node.environment = vec![
            ("LOCKKEEPER_SNAPSHOT_EVERY".into(), "200".into()),
            ("LOCKKEEPER_SNAPSHOT_BEHIND".into(), "50".into()),
        ];
    }
    cell.spawn_all();
    cell.until_agreed().await;
    let recorder = Recorder::new(Instant::now() + Duration::from_secs(seconds));

    let mut clients = JoinSet::new();
    for number in 1..=LIBRARY_CLIENTS {
        let (url, recorder, random) = (cell.url(), recorder.clone(), Random::new(random.next()));
        clients.spawn(client::run(number, url, recorder, random));
    }
    for number in LIBRARY_CLIENTS + 1..=LIBRARY_CLIENTS + DIRECT_CLIENTS {
        let hosts = cell.nodes.iter().map(|node| node.address.clone()).collect();
        let (recorder, random) = (recorder.clone(), Random::new(random.next()));
        clients.spawn(direct::run(number, hosts, recorder, random));
    }
    let faults = nemesis::run(&mut cell, &recorder, &mut random).await;

    // All faults are healed: clients can finish.
    let leader = cell.leader().await;
    while let Some(ended) = clients.join_next().await {
        ended.expect("no client panics");
    }
    recorder.read_at_the_end(&cell, leader).await;
    until("the last session to end", async || recorder.is_empty(&cell).await.then_some(())).await;

    let history = recorder.history();
    let counts = recorder.counts();
    println!("{faults}");
    let waited: usize = history.queues.iter().map(|queue| queue.requests.len()).sum();
    println!(
        "{waited} waiters seen in {} queues, {} reported losses",
        history.queues.len(),
        history.losses.len()
    );
    println!(
        "{} grants, {} holds, {} writes acknowledged, {} in doubt, {} reads; {counts}",
        history.grants.len(),
        history.holds.len(),
        history.writes.iter().filter(|write| write.version.is_some()).count(),
        history.writes.iter().filter(|write| write.version.is_none()).count(),
        history.reads.len(),
    );
    let mut snapshots = 0;
    for node in &cell.nodes {
        let status = node.status().await.expect("it runs");
        let installed = node.log_text().matches("installed a snapshot from another member").count();
        println!(
            "node {}: snapshot at {}, log purged to {}, {installed} snapshots installed from other members",
            node.id, status["snapshot_index"], status["purged_index"]
        );
        snapshots += u64::from(status["purged_index"].as_u64() > Some(0));
    }
    assert!(seconds < 30 || snapshots == 3, "not every node has purged its log");
    let violations = checkers::check_all(&history);
    assert!(
        violations.is_empty(),
        "LOCKKEEPER_SEED={seed} LOCKKEEPER_FAULT_SECONDS={seconds} cargo test --test faults\n{}",
        violations.join("\n")
    );
    assert!(seconds < 30 || waited > 0, "no waiters were observed, so the FIFO check is vacuous");
    assert!(history.grants.len() as u64 > seconds, "too few grants");
    assert!(faults.total() as u64 > seconds / 10, "too few faults");
}
