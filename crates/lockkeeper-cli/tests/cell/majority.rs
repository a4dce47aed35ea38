//! Two of three nodes are down: nothing is granted, requests fail fast, and nothing is lost.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::{acquire, grant, keep_alive, open_session};
use crate::harness::until;
use crate::health::is_serving;

/// Generous, for a busy machine. Client time-outs are much longer.
const REFUSES_WITHIN: Duration = Duration::from_secs(10);

/// Requires that a node without a majority refuses every request quickly.
async fn assert_refuses(cell: &Cell, node: u64, session: &str) {
    let opened = json!({"ttl_ms": 10_000});
    let began = Instant::now();
    let answers = [
        acquire(cell, node, session, "new").await,
        cell.post(node, "/v1/session/open", opened).await,
        keep_alive(cell, node, session).await,
        cell.get(node, "/v1/lock?name=kept").await,
        cell.post(node, "/v1/value/put", json!({"key": "k", "value": "v"})).await,
    ];
    for answer in answers {
        let refused = matches!((answer.status, answer.code()), (503, "unavailable") | (421, "not_leader"));
        assert!(refused, "{answer:?}");
    }
    assert!(began.elapsed() < REFUSES_WITHIN * 5, "{:?}", began.elapsed());
}

async fn loses_majority(survivor_leads: bool) {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let survivor = if survivor_leads { leader } else { cell.others(leader)[0] };
    let ttl = Duration::from_secs(3);
    let keeper = cell.keeper(Keeper::builder().ttl(ttl).request_timeout(Duration::from_secs(3))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let session = open_session(&cell, 60_000).await;
    // A request waits, with a time limit shorter than the outage.
    let waiter = open_session(&cell, 60_000).await;
    let wait = json!({"session": waiter, "lock": "kept", "request": "r1", "wait_ms": ttl.as_millis() as u64 + 2_000});
    let mut waits = crate::harness::http::Http::connect(&cell.node(leader).listen_addr).await.unwrap();
    waits.send_post("/v1/lock/acquire", &wait).await.unwrap();
    until("the request to wait", async || {
        let seen = cell.read("/v1/lock?name=kept").await;
        (seen["queue"].as_array()?.len() == 1).then_some(())
    })
    .await;
    cell.until_in_sync(&[1, 2, 3]).await;
    let (cell_time, asked) = (cell_time(&cell, leader).await, Instant::now());

    let down = cell.others(survivor);
    for id in &down {
        cell.kill(*id);
    }
    let killed = Instant::now();
    // The very first request after the kill is refused too.
    let first = acquire(&cell, survivor, &session, "first").await;
    assert_ne!(first.status, 200, "{first:?}");
    assert!(killed.elapsed() < REFUSES_WITHIN, "{:?}: {first:?}", killed.elapsed());
    until("the survivor to answer unavailable", async || {
        let answer = acquire(&cell, survivor, &session, "first").await;
        assert_ne!(answer.status, 200, "{answer:?}");
        (answer.code() == "unavailable").then_some(())
    })
    .await;
    println!("unavailable after {} ms", killed.elapsed().as_millis());
    assert!(killed.elapsed() < REFUSES_WITHIN, "{:?}", killed.elapsed());
    let error = keeper.lock("another").wait(Duration::from_millis(500)).acquire().await.unwrap_err();
    assert!(matches!(error.code(), "unavailable" | "timeout"), "{error}");

    assert!(!is_serving(&cell, survivor).await, "a node without a majority reports SERVING");

    // Longer than any lease of the client.
    while killed.elapsed() < ttl * 2 {
        assert_refuses(&cell, survivor, &session).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        guard.state(),
        GuardState::Jeopardy,
        "the clock of the client keeps running while cell time does not"
    );
    assert_eq!(guard.remaining(), Duration::ZERO);

    for id in &down {
        cell.spawn(*id);
    }
    let back = Instant::now();
    let leader = cell.leader().await;
    println!("new leader {} ms after the others were restarted", back.elapsed().as_millis());
    // Cell time did not advance (S2), so the wait is not shorter. It continues from the last entry: time that the former
    // leader counted after that is lost.
    let passed = Duration::from_millis(self::cell_time(&cell, leader).await.saturating_sub(cell_time));
    let stood_still = asked.elapsed().saturating_sub(passed);
    println!("cell time did not advance for {stood_still:?} of {:?}", asked.elapsed());
    assert!(stood_still + REFUSES_WITHIN > back.duration_since(killed), "{passed:?} passed");
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["queue"].as_array().map(Vec::len), Some(1), "the waiter lost its position: {seen}");
    // Without any action by the client, its guard is held again.
    until("the guard to be held again", async || (guard.state() == GuardState::Held).then_some(())).await;
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["holders"][0]["token"], guard.token().0, "{seen}");
    assert_eq!(cell.read("/v1/lock?name=new").await["last_token"], 0, "nothing was granted meanwhile");
    keep_alive(&cell, leader, &session).await.ok();
    grant(&cell, &session, "new").await;
    let token = guard.token().0;
    guard.release().await.unwrap();
    let granted = cell.call("/v1/lock/acquire", Some(&wait)).await;
    assert!(granted["token"].as_u64() > Some(token), "the waiter was next: {granted}");
}

async fn cell_time(cell: &Cell, node: u64) -> u64 {
    until("the cell time", async || cell.node(node).status().await?["cell_time_ms"].as_u64()).await
}

#[tokio::test]
async fn leader_without_its_followers_grants_nothing() {
    loses_majority(true).await;
}

#[tokio::test]
async fn follower_without_the_others_grants_nothing() {
    loses_majority(false).await;
}
