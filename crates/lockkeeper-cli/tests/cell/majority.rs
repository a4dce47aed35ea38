//! Two of three nodes are down: nothing is granted, nobody waits in vain, and nothing is lost.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::{acquire, grant, keep_alive, open_session};
use crate::harness::until;
use crate::health::says_serving;

/// Generous: a busy machine. A caller that waits in vain gives up much later.
const SAYS_SO_WITHIN: Duration = Duration::from_secs(10);

/// Nothing may be granted or promised by a node that is alone, and it must say so soon.
async fn refuses(cell: &Cell, node: u64, session: &str) {
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
        let told = matches!((answer.status, answer.code()), (503, "unavailable") | (421, "not_leader"));
        assert!(told, "{answer:?}");
    }
    assert!(began.elapsed() < SAYS_SO_WITHIN * 5, "{:?}", began.elapsed());
}

async fn two_of_three_are_down(survivor_leads: bool) {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let survivor = if survivor_leads { leader } else { cell.others(leader)[0] };
    let ttl = Duration::from_secs(3);
    let keeper = cell.keeper(Keeper::builder().ttl(ttl).request_timeout(Duration::from_secs(3))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let session = open_session(&cell, 60_000).await;
    // Somebody waits, for less time than the outage will last.
    let waiter = open_session(&cell, 60_000).await;
    let wait = json!({"session": waiter, "lock": "kept", "request": "r1", "wait_ms": ttl.as_millis() as u64 + 2_000});
    let mut waits = crate::harness::http::Http::connect(&cell.node(leader).listens).await.unwrap();
    waits.send_post("/v1/lock/acquire", &wait).await.unwrap();
    until("it to wait", async || {
        let seen = cell.read("/v1/lock?name=kept").await;
        (seen["queue"].as_array()?.len() == 1).then_some(())
    })
    .await;
    cell.until_even(&[1, 2, 3]).await;
    let (cell_time, asked) = (cell_time(&cell, leader).await, Instant::now());

    let down = cell.others(survivor);
    for id in &down {
        cell.kill(*id);
    }
    let killed = Instant::now();
    // The very first request after it, too.
    let first = acquire(&cell, survivor, &session, "first").await;
    assert_ne!(first.status, 200, "{first:?}");
    assert!(killed.elapsed() < SAYS_SO_WITHIN, "{:?}: {first:?}", killed.elapsed());
    until("the survivor to say so", async || {
        let answer = acquire(&cell, survivor, &session, "first").await;
        assert_ne!(answer.status, 200, "{answer:?}");
        (answer.code() == "unavailable").then_some(())
    })
    .await;
    println!("unavailable after {} ms", killed.elapsed().as_millis());
    assert!(killed.elapsed() < SAYS_SO_WITHIN, "{:?}", killed.elapsed());
    let error = keeper.lock("another").wait(Duration::from_millis(500)).acquire().await.unwrap_err();
    assert!(matches!(error.code(), "unavailable" | "timeout"), "{error}");

    assert!(!says_serving(&cell, survivor).await, "a node without a majority says that it serves");

    // Longer than any lease of that client.
    while killed.elapsed() < ttl * 2 {
        refuses(&cell, survivor, &session).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(guard.state(), GuardState::Jeopardy, "its own clock cannot know that cell time stands still");
    assert_eq!(guard.remaining(), Duration::ZERO);

    for id in &down {
        cell.spawn(*id);
    }
    let back = Instant::now();
    let leader = cell.leader().await;
    println!("a leader {} ms after the others were started again", back.elapsed().as_millis());
    // Cell time stood still (S2), so the wait has not become shorter. It goes on from the last entry: what the former leader
    // counted after that is known to nobody.
    let passed = Duration::from_millis(self::cell_time(&cell, leader).await.saturating_sub(cell_time));
    let stood_still = asked.elapsed().saturating_sub(passed);
    println!("cell time stood still for {stood_still:?} of {:?}", asked.elapsed());
    assert!(stood_still + SAYS_SO_WITHIN > back.duration_since(killed), "{passed:?} passed");
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["queue"].as_array().map(Vec::len), Some(1), "it lost its place: {seen}");
    // Nobody was asked to do anything, and the lease of a client that lives is what it was.
    until("the guard to be held again", async || (guard.state() == GuardState::Held).then_some(())).await;
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["holders"][0]["token"], guard.token().0, "{seen}");
    assert_eq!(cell.read("/v1/lock?name=new").await["last_token"], 0, "nothing was granted meanwhile");
    keep_alive(&cell, leader, &session).await.ok();
    grant(&cell, &session, "new").await;
    let token = guard.token().0;
    guard.release().await.unwrap();
    let granted = cell.ask("/v1/lock/acquire", Some(&wait)).await;
    assert!(granted["token"].as_u64() > Some(token), "it was its turn: {granted}");
}

async fn cell_time(cell: &Cell, node: u64) -> u64 {
    until("the cell time", async || cell.node(node).status().await?["cell_time_ms"].as_u64()).await
}

#[tokio::test]
async fn two_of_three_are_down_and_the_leader_is_left() {
    two_of_three_are_down(true).await;
}

#[tokio::test]
async fn two_of_three_are_down_and_a_follower_is_left() {
    two_of_three_are_down(false).await;
}
