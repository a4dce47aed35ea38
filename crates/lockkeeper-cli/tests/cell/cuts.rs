//! Connections between nodes are cut, in one direction and in both. Clients reach every node all the time.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::json;

use crate::harness::cell::Cell;
use crate::harness::client::{Load, acquire, grant, keep_alive, open_session};
use crate::harness::until;

/// Much longer than an election takes.
const CUT_FOR: Duration = Duration::from_secs(2);

/// The load has to go on for as long as a cut lasts.
async fn goes_on(load: &mut Load) {
    let began = Instant::now();
    while began.elapsed() < CUT_FOR {
        load.until_more(20).await;
    }
}

async fn term(cell: &Cell, id: u64) -> u64 {
    cell.node(id).until_status().await["term"].as_u64().unwrap()
}

#[tokio::test]
async fn the_leader_is_cut_off_from_both_followers_but_not_from_its_clients() {
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
    println!("another led {} ms after the cut", cut.elapsed().as_millis());
    println!("node {new} leads");
    cell.ask("/v1/session/close", Some(&json!({"session": closed}))).await;
    let session = open_session(&cell, 60_000).await;
    let newer = grant(&cell, &session, "passes-on").await["token"].clone();

    // The old one still runs and still hears its clients, and must not answer them.
    while cut.elapsed() < ttl * 3 / 2 {
        let answer = keep_alive(&cell, old, &closed).await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        let answer = cell.get(old, "/v1/lock?name=passes-on").await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        let answer = acquire(&cell, old, &session, "new").await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        assert_eq!(guard.state(), GuardState::Held, "its client went to the new leader");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    cell.network.heal();
    cell.until_even(&[1, 2, 3]).await;
    cell.leader().await;
    let seen = cell.read("/v1/lock?name=passes-on").await;
    assert_eq!(seen["holders"][0]["token"], newer);
    assert_eq!(cell.read("/v1/lock?name=new").await["last_token"], 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn one_follower_is_cut_off_from_the_leader_in_one_direction_and_the_other() {
    let cell = Cell::start_with_network(3).await;
    let mut load = Load::start(&cell, 3).await;
    for direction in 0..3 {
        let leader = cell.leader().await;
        let follower = cell.others(leader)[0];
        let before = term(&cell, leader).await;
        match direction {
            // It hears nothing of the leader, and would like to lead.
            0 => cell.network.cut(leader, follower),
            // It hears the leader, and its answers do not arrive.
            1 => cell.network.cut(follower, leader),
            _ => cell.network.cut_both(leader, follower),
        }
        goes_on(&mut load).await;
        assert_eq!(cell.leader().await, leader, "direction {direction}: the leader was deposed for nothing");
        assert_eq!(term(&cell, leader).await, before, "direction {direction}");
        cell.network.heal();
        load.until_more(50).await;
    }
    let done = load.end().await;
    cell.until_even(&[1, 2, 3]).await;
    println!("{done} pairs of acquire and release, none failed");
}

#[tokio::test]
async fn the_followers_are_cut_off_from_each_other() {
    let mut cell = Cell::start_with_network(3).await;
    let leader = cell.leader().await;
    let others = cell.others(leader);
    let mut load = Load::start(&cell, 2).await;
    cell.network.cut_both(others[0], others[1]);
    goes_on(&mut load).await;
    assert_eq!(cell.leader().await, leader);
    // Now the leader dies: neither of the two can win alone, and nothing is granted.
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
async fn a_leader_that_hears_nobody_gives_way() {
    let cell = Cell::start_with_network(3).await;
    let old = cell.leader().await;
    let others = cell.others(old);
    // What it says arrives; what the others say does not.
    for other in &others {
        cell.network.cut(*other, old);
    }
    let cut = Instant::now();
    cell.leader_among(&others).await;
    println!("another led {} ms after the leader became deaf", cut.elapsed().as_millis());
    let session = open_session(&cell, 60_000).await;
    grant(&cell, &session, "new").await;
    assert_ne!(acquire(&cell, old, &session, "new").await.status, 200);
    cell.network.heal();
    cell.until_even(&[1, 2, 3]).await;
}

#[tokio::test]
async fn a_node_that_was_cut_off_does_not_disturb_the_others_when_it_is_back() {
    let cell = Cell::start_with_network(3).await;
    let leader = cell.leader().await;
    let follower = cell.others(leader)[0];
    let before = term(&cell, leader).await;
    for other in cell.others(follower) {
        cell.network.cut_both(follower, other);
    }
    let mut load = Load::start(&cell, 2).await;
    goes_on(&mut load).await;
    cell.network.heal();
    until("it to follow again", async || {
        (cell.node(follower).status().await?["leader"] == leader).then_some(())
    })
    .await;
    load.until_more(100).await;
    load.end().await;
    cell.until_even(&[1, 2, 3]).await;
    assert_eq!(cell.leader().await, leader);
    assert_eq!(term(&cell, leader).await, before, "it has not raised the term while it was alone");
}
