//! Kills, stops and cuts at random moments, while clients take locks, hold them and write under their tokens; and then
//! the question whether anything was lost, given twice, or held by two.
//!
//! LOCKKEEPER_FAULT_SECONDS sets how long (60), LOCKKEEPER_SEED which faults; both are printed.

#![allow(clippy::unwrap_used, reason = "a test that does not get what it asks for has failed")]

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
/// Few, so that there is something to wait for.
pub(crate) const LOCKS: [&str; 4] = ["red", "green", "blue", "white"];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[tokio::test]
async fn nothing_is_lost_given_twice_or_held_by_two() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = from_environment("LOCKKEEPER_SEED").unwrap_or(now % 1_000_000_000);
    let seconds = from_environment("LOCKKEEPER_FAULT_SECONDS").unwrap_or(60);
    println!("LOCKKEEPER_SEED={seed} LOCKKEEPER_FAULT_SECONDS={seconds}");
    let mut random = Random::new(seed);
    let mut cell = Cell::plan_with_network(3).await;
    for node in &mut cell.nodes {
        // Snapshots are taken, sent and read all the time: some of the faults hit that.
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

    // Everything is whole again: whoever is still at work can end it.
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
        "{waited} waiters seen in {} queues, {} losses told",
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
        let installed = node.log_text().matches("a snapshot of another member was installed").count();
        println!(
            "node {}: snapshot at {}, log cut through {}, {installed} snapshots came from others",
            node.id, status["snapshot_index"], status["purged_index"]
        );
        snapshots += u64::from(status["purged_index"].as_u64() > Some(0));
    }
    assert!(seconds < 30 || snapshots == 3, "not every node has cut its log");
    let violations = checkers::check_all(&history);
    assert!(
        violations.is_empty(),
        "LOCKKEEPER_SEED={seed} LOCKKEEPER_FAULT_SECONDS={seconds} cargo test --test faults\n{}",
        violations.join("\n")
    );
    assert!(seconds < 30 || waited > 0, "nobody was ever seen waiting, so nobody could be seen overtaking");
    assert!(history.grants.len() as u64 > seconds, "the clients got hardly anything");
    assert!(faults.total() as u64 > seconds / 10, "hardly anything happened");
}
