//! Two of three nodes are down: nothing is granted, nobody waits in vain, and nothing is lost.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::{acquire, grant, keep_alive, open_session};
use crate::harness::until;

const SAYS_SO_WITHIN: Duration = Duration::from_secs(3);

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
    cell.until_even(&[1, 2, 3]).await;

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
    // Nobody was asked to do anything, and the lease of a client that lives is what it was.
    until("the guard to be held again", async || (guard.state() == GuardState::Held).then_some(())).await;
    let seen = cell.read("/v1/lock?name=kept").await;
    assert_eq!(seen["holders"][0]["token"], guard.token().0, "{seen}");
    assert_eq!(cell.read("/v1/lock?name=new").await["last_token"], 0, "nothing was granted meanwhile");
    keep_alive(&cell, leader, &session).await.ok();
    grant(&cell, &session, "new").await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn two_of_three_are_down_and_the_leader_is_left() {
    two_of_three_are_down(true).await;
}

#[tokio::test]
async fn two_of_three_are_down_and_a_follower_is_left() {
    two_of_three_are_down(false).await;
}
