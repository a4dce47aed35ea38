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
    let mut cell = Cell::start_with_network(3).await;
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
    println!(
        "{} grants, {} holds, {} writes acknowledged, {} in doubt, {} reads; {counts}",
        history.grants.len(),
        history.holds.len(),
        history.writes.iter().filter(|write| write.version.is_some()).count(),
        history.writes.iter().filter(|write| write.version.is_none()).count(),
        history.reads.len(),
    );
    let violations = checkers::check_all(&history);
    assert!(
        violations.is_empty(),
        "LOCKKEEPER_SEED={seed} LOCKKEEPER_FAULT_SECONDS={seconds} cargo test --test faults\n{}",
        violations.join("\n")
    );
    assert!(history.grants.len() as u64 > seconds, "the clients got hardly anything");
    assert!(faults.total() as u64 > seconds / 10, "hardly anything happened");
}
