//! Members that are far apart: with the timing that is made for their distance nothing is refused and nobody is deposed.

use std::time::{Duration, Instant};

use lockkeeper::Keeper;
use serde_json::json;

use crate::harness::cell::{Cell, text};
use crate::harness::client::{grant, open_session};
use crate::harness::network::Delay;
use crate::harness::until;

/// How long each cell is watched.
const WATCHED: Duration = Duration::from_secs(4);

/// Takes and gives back a lock at the leader for some seconds. Everything is answered, and the leader stays.
async fn works_without_a_change(cell: &Cell) {
    let leader = cell.leader().await;
    let term = cell.node(leader).until_status().await["term"].clone();
    let session = open_session(cell, 30_000).await;
    let (began, mut pairs, mut slowest) = (Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < WATCHED {
        let asked = Instant::now();
        let granted = cell.post(leader, "/v1/lock/acquire", json!({"session": session, "lock": "far"})).await;
        let token = granted.ok()["token"].clone();
        let body = json!({"session": session, "lock": "far", "token": token});
        cell.post(leader, "/v1/lock/release", body).await.ok();
        cell.post(leader, "/v1/session/keepalive", json!({"session": session})).await.ok();
        slowest = slowest.max(asked.elapsed());
        pairs += 1;
    }
    println!("{pairs} pairs in {:?}, the slowest took {slowest:?}", began.elapsed());
    for node in &cell.nodes {
        let status = node.until_status().await;
        assert_eq!((&status["term"], &status["leader"]), (&term, &json!(leader)), "node {}", node.id);
    }
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
async fn a_cell_holds_at_50_ms_without_any_setting() {
    let cell = start(50, 0, &[]).await;
    works_without_a_change(&cell).await;
}

/// A lost packet holds back everything behind it for the time that TCP takes to repeat it, here 250 ms.
#[tokio::test]
async fn a_cell_holds_at_50_ms_with_lost_packets() {
    let cell = start(50, 20, &[]).await;
    until("lost packets, with which the cell works", async || {
        let before = cell.network.lost();
        works_without_a_change(&cell).await;
        let lost = cell.network.lost() - before;
        println!("{lost} packets were lost meanwhile");
        (lost > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn another_node_leads_soon_at_50_ms() {
    let mut cell = start(50, 0, &[]).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    keeper.lock("before").acquire().await.unwrap().release().await.unwrap();
    let leader = cell.leader().await;
    let killed = Instant::now();
    cell.kill(leader);
    keeper.lock("after").acquire().await.unwrap().release().await.unwrap();
    let took = killed.elapsed();
    println!("granted and given back {} ms after the leader was killed", took.as_millis());
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn a_cell_with_the_timing_of_a_region_holds_at_150_ms() {
    let cell = start(150, 5, &["--timing", "region"]).await;
    works_without_a_change(&cell).await;
}

#[tokio::test]
async fn a_global_cell_holds_at_400_ms() {
    let cell = start(400, 5, &["--timing", "global"]).await;
    works_without_a_change(&cell).await;
}

#[tokio::test]
async fn a_round_trip_that_does_not_fit_is_reported_everywhere() {
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

#[tokio::test]
async fn the_timing_is_changed_by_a_rolling_restart() {
    let mut cell = Cell::start(3).await;
    let session = open_session(&cell, 60_000).await;
    let token = grant(&cell, &session, "kept").await["token"].clone();
    for id in 1..=3 {
        cell.node_mut(id).term().await;
        let list = cell.list();
        cell.spawn_with(id, &["--cell", &list, "--timing", "region"]);
        cell.until_agreed().await;
    }
    for node in &cell.nodes {
        assert_eq!(node.until_status().await["election_timeout_ms"], 1_200);
    }
    assert_eq!(cell.read("/v1/lock?name=kept").await["holders"][0]["token"], token);
}
