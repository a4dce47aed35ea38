//! Links between nodes are cut, in one direction or both. Clients still reach every node.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::{Load, acquire, grant, keep_alive, open_session};
use crate::harness::until;

/// Much longer than an election takes.
const CUT_FOR: Duration = Duration::from_secs(2);

/// Requires that the load makes progress for as long as a cut lasts.
async fn until_cut_is_over(load: &mut Load) {
    let began = Instant::now();
    while began.elapsed() < CUT_FOR {
        load.until_more(20).await;
    }
}

async fn term(cell: &Cell, id: u64) -> u64 {
    cell.node(id).until_status().await["term"].as_u64().unwrap()
}

#[tokio::test]
async fn leader_cut_off_from_both_followers_refuses_its_clients() {
    let cell = Cell::start_with_network(3).await;
    let old = cell.leader().await;
    let others = cell.others(old);
    let ttl = Duration::from_secs(5);
    let keeper = cell.keeper(Keeper::builder().ttl(ttl)).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let closed = open_session(&cell, 60_000).await;
    grant(&cell, &closed, "passes-on").await;

    for other in &others {
        cell.network.cut_both(old, *other);
    }
    let cut = Instant::now();
    let new = cell.leader_among(&others).await;
    println!("new leader {} ms after the cut", cut.elapsed().as_millis());
    println!("node {new} leads");
    cell.call("/v1/session/close", Some(&json!({"session": closed}))).await;
    let session = open_session(&cell, 60_000).await;
    let newer = grant(&cell, &session, "passes-on").await["token"].clone();

    // The old leader still receives requests of clients, and must refuse them.
    while cut.elapsed() < ttl * 3 / 2 {
        let answer = keep_alive(&cell, old, &closed).await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        let answer = cell.get(old, "/v1/lock?name=passes-on").await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        let answer = acquire(&cell, old, &session, "new").await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        assert_eq!(guard.state(), GuardState::Held, "its client switched to the new leader");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    cell.network.heal();
    cell.until_in_sync(&[1, 2, 3]).await;
    cell.leader().await;
    let seen = cell.read("/v1/lock?name=passes-on").await;
    assert_eq!(seen["holders"][0]["token"], newer);
    assert_eq!(cell.read("/v1/lock?name=new").await["last_token"], 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn cut_between_leader_and_one_follower_does_not_depose_the_leader() {
    let cell = Cell::start_with_network(3).await;
    let mut load = Load::start(&cell, 3).await;
    for direction in 0..3 {
        let leader = cell.leader().await;
        let follower = cell.others(leader)[0];
        let before = term(&cell, leader).await;
        match direction {
            // The follower hears nothing from the leader and starts elections.
            0 => cell.network.cut(leader, follower),
            // The follower hears the leader, but its answers are lost.
            1 => cell.network.cut(follower, leader),
            _ => cell.network.cut_both(leader, follower),
        }
        until_cut_is_over(&mut load).await;
        assert_eq!(cell.leader().await, leader, "direction {direction}: the leader was deposed without need");
        assert_eq!(term(&cell, leader).await, before, "direction {direction}");
        cell.network.heal();
        load.until_more(50).await;
    }
    let done = load.end().await;
    cell.until_in_sync(&[1, 2, 3]).await;
    println!("{done} pairs of acquire and release, none failed");
}

#[tokio::test]
async fn followers_cut_off_from_each_other_cannot_elect_a_leader() {
    let mut cell = Cell::start_with_network(3).await;
    let leader = cell.leader().await;
    let others = cell.others(leader);
    let mut load = Load::start(&cell, 2).await;
    cell.network.cut_both(others[0], others[1]);
    until_cut_is_over(&mut load).await;
    assert_eq!(cell.leader().await, leader);
    // Now the leader dies: neither follower can win an election, so nothing is granted.
    load.end().await;
    cell.kill(leader);
    let began = Instant::now();
    while began.elapsed() < CUT_FOR {
        for id in &others {
            let answer = cell.post(*id, "/v1/session/open", json!({"ttl_ms": 10_000})).await;
            assert_ne!(answer.status, 200, "{answer:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cell.network.heal();
    cell.leader().await;
    let session = open_session(&cell, 10_000).await;
    grant(&cell, &session, "new").await;
}

#[tokio::test]
async fn leader_that_receives_no_messages_steps_down() {
    let cell = Cell::start_with_network(3).await;
    let old = cell.leader().await;
    let others = cell.others(old);
    // Messages from the leader arrive; messages to it do not.
    for other in &others {
        cell.network.cut(*other, old);
    }
    let cut = Instant::now();
    cell.leader_among(&others).await;
    println!("new leader {} ms after the cut", cut.elapsed().as_millis());
    let session = open_session(&cell, 60_000).await;
    grant(&cell, &session, "new").await;
    assert_ne!(acquire(&cell, old, &session, "new").await.status, 200);
    cell.network.heal();
    cell.until_in_sync(&[1, 2, 3]).await;
}

#[tokio::test]
async fn isolated_follower_does_not_disturb_the_cell_when_it_returns() {
    let cell = Cell::start_with_network(3).await;
    let leader = cell.leader().await;
    let follower = cell.others(leader)[0];
    let before = term(&cell, leader).await;
    for other in cell.others(follower) {
        cell.network.cut_both(follower, other);
    }
    let mut load = Load::start(&cell, 2).await;
    until_cut_is_over(&mut load).await;
    cell.network.heal();
    until("the node to follow again", async || {
        (cell.node(follower).status().await?["leader"] == leader).then_some(())
    })
    .await;
    load.until_more(100).await;
    load.end().await;
    cell.until_in_sync(&[1, 2, 3]).await;
    assert_eq!(cell.leader().await, leader);
    assert_eq!(term(&cell, leader).await, before, "the isolated node raised the term");
}
