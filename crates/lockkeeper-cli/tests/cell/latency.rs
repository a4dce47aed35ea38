//! Distant members: with the timing for their distance no request is refused and no leader is deposed.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::{Value, json};

use crate::harness::cell::{Cell, text};
use crate::harness::client::{Load, grant, open_session};
use crate::harness::network::Delay;
use crate::harness::until;

/// Each cell is observed for several periods, of which this many count.
const PERIODS: usize = 5;
const OBSERVED: Duration = Duration::from_secs(3);
/// How many of them may have a refused request or an election.
const DISTURBED_MAX: usize = 1;
/// A disturbed period does not count if this process, which delays the packets, was itself late by more than this: then the
/// machine is too busy, and the network is slower than the test says.
const LATE_MAX: Duration = Duration::from_millis(30);
const PERIODS_MAX: usize = 25;
/// Lost packets per thousand. A lost packet delays all later ones of its connection until TCP retransmits it, here 200 ms more
/// than a round trip.
const LOST_PER_MILLE: u64 = 5;

/// Acquires and releases a lock at the leader for some seconds. Fails if a request is refused or the leader changes.
async fn watch(cell: &Cell) -> Result<(), String> {
    let leader = cell.leader().await;
    let term = cell.node(leader).until_status().await["term"].clone();
    let session = open_session(cell, 30_000).await;
    // A period that fails may leave its lock held.
    let lock = format!("far/{session}");
    let (began, mut pairs, mut slowest) = (Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < OBSERVED {
        let asked = Instant::now();
        let body = json!({"session": session, "lock": lock});
        let token = accepted(cell, leader, "acquire", body).await?["token"].clone();
        let body = json!({"session": session, "lock": lock, "token": token});
        accepted(cell, leader, "release", body).await?;
        let renewed = cell.post(leader, "/v1/session/keepalive", json!({"session": session})).await;
        if renewed.status != 200 {
            return Err(format!("keepalive: {}", renewed.body));
        }
        slowest = slowest.max(asked.elapsed());
        pairs += 1;
    }
    println!("{pairs} pairs in {:?}, the slowest took {slowest:?}", began.elapsed());
    for node in &cell.nodes {
        let status = node.until_status().await;
        if (&status["term"], &status["leader"]) != (&term, &json!(leader)) {
            return Err(format!("node {} follows another leader: {status}", node.id));
        }
    }
    Ok(())
}

async fn accepted(cell: &Cell, leader: u64, call: &str, body: Value) -> Result<Value, String> {
    let answer = cell.post(leader, &format!("/v1/lock/{call}"), body).await;
    if answer.status == 200 { Ok(answer.body) } else { Err(format!("{call}: {}", answer.body)) }
}

/// Runs a future, and returns by how much this process was late at most.
async fn with_lateness<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let mut late = Duration::ZERO;
    let measuring = async {
        loop {
            let due = Instant::now() + Duration::from_millis(5);
            tokio::time::sleep_until(due.into()).await;
            late = late.max(due.elapsed());
        }
    };
    let output = tokio::select! {
        output = future => output,
        never = measuring => never,
    };
    (output, late)
}

/// Requires that everything is answered under one leader. Returns the number of lost packets.
async fn serves_without_election(cell: &Cell) -> u64 {
    let before = cell.network.lost();
    let (mut counted, mut disturbed) = (0, Vec::new());
    for _ in 0..PERIODS_MAX {
        let (watched, late) = with_lateness(watch(cell)).await;
        match watched {
            Ok(()) => counted += 1,
            Err(why) => {
                println!("{why}; late by up to {late:?}");
                if late <= LATE_MAX {
                    counted += 1;
                    disturbed.push(why);
                }
                cell.until_agreed().await;
            }
        }
        if counted == PERIODS {
            break;
        }
    }
    assert!(disturbed.len() <= DISTURBED_MAX, "{} of {counted} periods: {disturbed:#?}", disturbed.len());
    assert_eq!(counted, PERIODS, "the machine was too busy in {PERIODS_MAX} periods");
    let lost = cell.network.lost() - before;
    println!("{lost} packets were lost meanwhile");
    lost
}

async fn start(round_trip_ms: u64, lost_per_mille: u64, words: &[&str]) -> Cell {
    let mut cell = Cell::plan_with_network(3).await;
    cell.network.delay(Some(Delay::of_round_trip(round_trip_ms, lost_per_mille)));
    let list = cell.list();
    for id in 1..=3 {
        let mut all = vec!["--cell", &list];
        all.extend(words);
        cell.spawn_with(id, &all);
    }
    cell.until_agreed().await;
    cell
}

#[tokio::test]
async fn default_timing_is_stable_at_50_ms() {
    let cell = start(50, 0, &[]).await;
    serves_without_election(&cell).await;
}

#[tokio::test]
async fn default_timing_is_stable_at_50_ms_with_packet_loss() {
    let cell = start(50, LOST_PER_MILLE, &[]).await;
    assert!(serves_without_election(&cell).await > 0, "no packet was lost");
}

#[tokio::test]
async fn failover_is_fast_at_50_ms() {
    let mut cell = start(50, 0, &[]).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    keeper.lock("before").acquire().await.unwrap().release().await.unwrap();
    let leader = cell.leader().await;
    let killed = Instant::now();
    cell.kill(leader);
    keeper.lock("after").acquire().await.unwrap().release().await.unwrap();
    let took = killed.elapsed();
    println!("granted and released {} ms after the leader was killed", took.as_millis());
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn region_timing_is_stable_at_150_ms() {
    let cell = start(150, LOST_PER_MILLE, &["--timing", "region"]).await;
    serves_without_election(&cell).await;
}

#[tokio::test]
async fn global_timing_is_stable_at_400_ms() {
    let cell = start(400, LOST_PER_MILLE, &["--timing", "global"]).await;
    serves_without_election(&cell).await;
}

#[tokio::test]
async fn round_trip_too_long_for_the_timing_is_reported() {
    let cell = start(50, 0, &["--heartbeat", "70ms", "--election-timeout", "280ms"]).await;
    let leader = cell.leader().await;
    let session = open_session(&cell, 10_000).await;
    grant(&cell, &session, "any").await;
    until("the warning of status", async || {
        let status = text(&cell.cli(&["status"]).await.stdout);
        status.contains("set a slower --timing").then_some(())
    })
    .await;
    until("the finding of doctor", async || {
        let doctor = cell.cli(&["doctor", "--output", "json"]).await;
        let found: serde_json::Value = serde_json::from_slice(&doctor.stdout).ok()?;
        let findings = found["findings"].as_array()?;
        findings.iter().any(|finding| finding["code"] == "round-trip").then_some(())
    })
    .await;
    until("the line in the log", async || {
        let log = std::fs::read_to_string(&cell.node(leader).log).unwrap();
        log.contains("too long for this timing").then_some(())
    })
    .await;
}

/// Members are distant, clients work, and members with different timing form one cell meanwhile.
#[tokio::test]
async fn rolling_restart_changes_the_timing() {
    let mut cell = start(50, 0, &[]).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(10))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut load = Load::start(&cell, 3).await;
    for id in 1..=3 {
        cell.node_mut(id).term().await;
        let list = cell.list();
        cell.spawn_with(id, &["--cell", &list, "--timing", "region"]);
        cell.until_agreed().await;
        load.until_more(20).await;
        assert_eq!(guard.state(), GuardState::Held);
    }
    for node in &cell.nodes {
        assert_eq!(node.until_status().await["election_timeout_ms"], 1_200);
    }
    let done = load.end().await;
    println!("{done} pairs of acquire and release while the timing changed, none failed");
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["holders"][0]["token"], guard.token().0);
    guard.release().await.unwrap();
}
