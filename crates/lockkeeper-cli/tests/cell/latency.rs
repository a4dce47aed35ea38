//! Distant members: with the timing for their distance no request is refused and no leader is deposed.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use lockkeeper_server::raft::TimingPreset;
use serde_json::{Value, json};

use crate::failover::assert_no_loss;
use crate::harness::cell::{Cell, text};
use crate::harness::client::{Load, grant, open_session};
use crate::harness::http::quick_get;
use crate::harness::network::Delay;
use crate::harness::{LATE_MAX, report_retry, until, with_lateness};

/// Each cell is observed for this many periods, without a refused request or an election in any of them.
const PERIODS: usize = 5;
const OBSERVED: Duration = Duration::from_secs(3);
/// A disturbed period is observed again if this process, which delays the packets, was itself late: then the machine is too busy,
/// and the network is slower than the test says. The machine may also have delayed only a node, so this many disturbed periods
/// without that excuse are observed again.
const REPEATED_MAX: usize = 1;
/// With lost packets: retransmissions to both followers at the same moment take longer than the leader's lease.
pub(crate) const REPEATED_WITH_LOSS_MAX: usize = 4;
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

/// Requires that everything is answered under one leader. At most so many disturbed periods are observed again.
pub(crate) async fn assert_no_election(cell: &Cell, repeated_max: usize) {
    let (mut clean, mut disturbed) = (0, Vec::new());
    for _ in 0..PERIODS_MAX {
        let (watched, late) = with_lateness(watch(cell)).await;
        match watched {
            Ok(()) => clean += 1,
            Err(why) => {
                report_retry(&format!("{why}; late by up to {late:?}"));
                if late <= LATE_MAX {
                    disturbed.push(why);
                }
                cell.until_agreed().await;
            }
        }
        assert!(disturbed.len() <= repeated_max, "beside {clean} clean periods: {disturbed:#?}");
        if clean == PERIODS {
            return;
        }
    }
    panic!("the machine was too busy in {PERIODS_MAX} periods");
}

/// The same; requires that packets were lost meanwhile.
async fn assert_no_election_despite_loss(cell: &Cell) {
    let before = cell.network.lost();
    assert_no_election(cell, REPEATED_WITH_LOSS_MAX).await;
    let lost = cell.network.lost() - before;
    println!("{lost} packets were lost meanwhile");
    assert!(lost > 0, "no packet was lost");
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
    assert_no_election(&cell, REPEATED_MAX).await;
}

#[tokio::test]
async fn default_timing_is_stable_at_50_ms_with_packet_loss() {
    let cell = start(50, LOST_PER_MILLE, &[]).await;
    assert_no_election_despite_loss(&cell).await;
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
    assert_no_election_despite_loss(&cell).await;
}

#[tokio::test]
async fn global_timing_is_stable_at_400_ms() {
    let cell = start(400, LOST_PER_MILLE, &["--timing", "global"]).await;
    assert_no_election_despite_loss(&cell).await;
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

/// Restarts the nodes one after the other with another timing, while the others have the former one.
async fn change_timing(cell: &mut Cell, load: &mut Load, preset: TimingPreset) {
    for id in 1..=3 {
        assert_eq!(cell.node_mut(id).term().await.code(), Some(0), "node {id}");
        let list = cell.list();
        cell.spawn_with(id, &["--cell", &list, "--timing", preset.name()]);
        until("the node to be ready", async || {
            let answer = quick_get(&cell.node(id).listen_addr, "/readyz").await?;
            (answer.status == 200).then_some(())
        })
        .await;
        cell.until_agreed().await;
        load.until_more(20).await;
    }
    let promise_ms = preset.timing().promise().as_millis() as u64;
    for node in &cell.nodes {
        assert_eq!(node.until_status().await["election_timeout_ms"], promise_ms);
        // A shorter promise counts only after the node has kept silent for the longer one.
        let identity = node.data.join("identity.json");
        until(&format!("node {} to have only the new promise", node.id), async || {
            let identity: Value = serde_json::from_str(&std::fs::read_to_string(&identity).ok()?).ok()?;
            (identity["promise_ms"] == promise_ms).then_some(())
        })
        .await;
    }
}

/// Members are distant, clients work, and members with different timing form one cell meanwhile.
#[tokio::test]
async fn rolling_restarts_lengthen_and_shorten_the_timing() {
    let mut cell = start(50, 0, &[]).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(20))).await;
    let events = keeper.events();
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let waiting = keeper.lock("kept");
    let next = tokio::spawn(async move { waiting.acquire().await });
    let mut load = Load::start(&cell, 3).await;
    for preset in [TimingPreset::Global, TimingPreset::Lan] {
        change_timing(&mut cell, &mut load, preset).await;
        assert_eq!(guard.state(), GuardState::Held, "{preset:?}");
    }
    let done = load.end().await;
    println!("{done} pairs of acquire and release while the timing changed, none failed");
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["holders"][0]["token"], guard.token().0);
    assert_no_loss(events).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}
