//! Members that are far apart: with the timing that is made for their distance nothing is refused and nobody is deposed.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::certificates::Authority;
use crate::harness::cell::{Cell, text};
use crate::harness::client::{grant, open_session};
use crate::harness::network::Delay;
use crate::harness::node::free_address;
use crate::harness::until;

/// How long each cell is watched.
const WATCHED: Duration = Duration::from_secs(4);

fn delay(round_trip_ms: u64, lost_per_mille: u64) -> Delay {
    Delay {
        one_way: Duration::from_millis(round_trip_ms / 2),
        jitter: Duration::from_millis(round_trip_ms / 10),
        lost_per_mille,
        repeated_after: Duration::from_millis(round_trip_ms + 200),
    }
}

/// Takes and gives back a lock at the leader for some seconds. Everything is answered, and the leader stays.
async fn works_without_a_change(cell: &Cell) {
    let leader = cell.leader().await;
    let term = cell.node(leader).status().await.unwrap()["term"].clone();
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
        let status = node.status().await.unwrap();
        assert_eq!((&status["term"], &status["leader"]), (&term, &json!(leader)), "node {}", node.id);
    }
}

async fn start(round_trip_ms: u64, lost_per_mille: u64, words: &[&str]) -> Cell {
    let mut cell = Cell::plan_with_network(3).await;
    cell.network.delay(Some(delay(round_trip_ms, lost_per_mille)));
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

#[tokio::test]
async fn a_cell_with_the_timing_of_a_region_holds_at_150_ms() {
    let cell = start(150, 5, &["--timing", "region"]).await;
    works_without_a_change(&cell).await;
}

#[tokio::test]
async fn a_global_cell_holds_at_400_ms_under_tls() {
    let mut cell = Cell::plan(0);
    let members = Authority::new(cell.folder(), "members");
    let shown = |path: &Path| path.display().to_string();
    let mut all_words = Vec::new();
    for id in 1..=3 {
        // The members' port is behind the proxy; clients and the test come to the other one.
        let (public, real, clients) = (free_address(7420), free_address(7420), free_address(7430));
        cell.network.proxy(id, &public, &real).await;
        let own = members.issue(&format!("node-{id}"), &[&public, &real]);
        all_words.push(vec![
            "--peer-listen".to_owned(),
            real,
            "--peer-ca".to_owned(),
            shown(&members.file),
            "--peer-cert".to_owned(),
            shown(&own.certificate),
            "--peer-key".to_owned(),
            shown(&own.key),
        ]);
        cell.add_node(id, clients, public);
    }
    cell.network.delay(Some(delay(400, 5)));
    let list = cell.list();
    for (id, words) in (1..).zip(&all_words) {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.extend(["--cell", &list, "--timing", "global"]);
        cell.spawn_with(id, &words);
    }
    cell.until_agreed().await;
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
        assert_eq!(node.status().await.unwrap()["election_timeout_ms"], 1_200);
    }
    assert_eq!(cell.read("/v1/lock?name=kept").await["holders"][0]["token"], token);
}
