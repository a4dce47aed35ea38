//! Members are added and removed while the cell serves.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::{Value, json};

use crate::harness::cell::{Cell, text};
use crate::harness::client::{Load, acquire, grant, open_session};
use crate::harness::http::{self, Http};
use crate::harness::until;

/// Starts a node with an empty folder and adds it.
async fn add(cell: &mut Cell, id: u64) {
    cell.spawn(id);
    cell.node(id).until_log("member add").await;
    let output = cell.cli(&["member", "add", &format!("{id}={}", cell.node(id).address)]).await;
    assert!(output.status.success(), "adding node {id}: {}", text(&output.stderr));
}

async fn remove(cell: &Cell, id: u64) {
    let output = cell.cli(&["member", "remove", &id.to_string()]).await;
    assert!(output.status.success(), "removing node {id}: {}", text(&output.stderr));
}

/// The ids of the voters, as the leader knows them.
async fn voters(cell: &Cell) -> Vec<u64> {
    let list: Value = cell.json(&["member", "list"]).await;
    let members = list["members"].as_array().unwrap().iter();
    members.filter(|member| member["voter"] == true).map(|m| m["node_id"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn cell_grows_from_one_to_five_nodes_under_load() {
    let mut cell = Cell::plan(1);
    cell.spawn(1);
    cell.leader().await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut load = Load::start(&cell, 2).await;
    for id in 2..=5 {
        cell.plan_node(id);
        add(&mut cell, id).await;
        load.until_more(20).await;
        assert_eq!(voters(&cell).await, (1..=id).collect::<Vec<_>>());
    }
    assert_eq!(guard.state(), GuardState::Held);
    println!("{} pairs of acquire and release, none failed", load.end().await);
    guard.release().await.unwrap();
    cell.until_in_sync(&[1, 2, 3, 4, 5]).await;

    // Five nodes survive the loss of two, one of them the leader.
    let leader = cell.leader().await;
    cell.kill(leader);
    let second = cell.leader().await;
    cell.kill(cell.others(leader).into_iter().find(|id| *id != second).unwrap());
    cell.leader().await;
    let session = open_session(&cell, 10_000).await;
    grant(&cell, &session, "after").await;
}

#[tokio::test]
async fn dead_node_is_replaced() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let dead = cell.others(leader)[0];
    let mut load = Load::start(&cell, 2).await;
    cell.kill(dead);
    remove(&cell, dead).await;
    cell.plan_node(4);
    add(&mut cell, 4).await;
    load.until_more(50).await;
    let mut expected = vec![1, 2, 3, 4];
    expected.retain(|id| *id != dead);
    assert_eq!(voters(&cell).await, expected);
    println!("{} pairs of acquire and release, none failed", load.end().await);

    // The dead node returns with its folder. It is no longer a member, and does no harm.
    let leader = cell.leader().await;
    let term = cell.node(leader).until_status().await["term"].clone();
    cell.spawn_with(dead, &[]);
    let began = Instant::now();
    let session = open_session(&cell, 60_000).await;
    while began.elapsed() < Duration::from_secs(2) {
        let answer = acquire(&cell, leader, &session, &format!("l{}", began.elapsed().as_micros())).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = json!({"ttl_ms": 10_000});
        if let Ok(answer) = http::post(&cell.node(dead).listen_addr, "/v1/session/open", &body).await {
            assert_ne!(answer.status, 200, "a former member granted something: {answer:?}");
        }
    }
    assert_eq!(cell.node(leader).until_status().await["term"], term, "there was no election");
    // Two of the three voters are enough.
    let other = expected.into_iter().find(|id| *id != leader && *id != 4).unwrap();
    cell.kill(other);
    grant(&cell, &session, "after").await;
}

#[tokio::test]
async fn leader_can_be_removed() {
    let mut cell = Cell::start(3).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let mut load = Load::start(&cell, 2).await;
    let leader = cell.leader().await;
    remove(&cell, leader).await;
    load.until_more(50).await;
    let others = cell.others(leader);
    assert_eq!(voters(&cell).await, others);
    assert!(others.contains(&cell.leader().await));
    println!("{} pairs of acquire and release, none failed", load.end().await);
    let answer = cell.get(leader, "/v1/lock?name=kept").await;
    assert!(matches!(answer.status, 421 | 503), "{answer:?}");
    assert_eq!(guard.state(), GuardState::Held);
    guard.release().await.unwrap();

    // With an empty folder it can be added again.
    cell.kill(leader);
    std::fs::remove_dir_all(&cell.node(leader).data).unwrap();
    cell.node(leader).empty_log();
    add(&mut cell, leader).await;
    assert_eq!(voters(&cell).await, [1, 2, 3]);
}

#[tokio::test]
async fn removal_that_would_lose_the_majority_is_refused() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let others = cell.others(leader);
    cell.kill(others[0]);
    until("the leader to notice the dead node", async || {
        let status = cell.node(leader).status().await?;
        let missing = status["members"].as_array()?.iter().find(|m| m["node_id"] == others[0])?.clone();
        (missing["silent_ms"].as_u64().is_none_or(|silent| silent > 2_500)).then_some(())
    })
    .await;
    // Removing the other follower would leave one live node of two.
    let output = cell.cli(&["member", "remove", &others[1].to_string()]).await;
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("start the others first"), "{output:?}");
    // A node that does not answer, or that has another id, is not added.
    let output = cell.cli(&["member", "add", "7=127.0.0.1:1"]).await;
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("no node answers at 127.0.0.1:1"), "{output:?}");
    let wrong = format!("7={}", cell.node(others[1]).address);
    let output = cell.cli(&["member", "add", &wrong]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(text(&output.stderr).contains(&format!("is node {}, not node 7", others[1])), "{output:?}");
    let output = cell.cli(&["member", "remove", "9"]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert_eq!(voters(&cell).await, [1, 2, 3]);
}

/// Three members and a slow learner: if the learner voted before it caught up, the quorum would be three of four, and the
/// cell would stall when one of the old members fails.
#[tokio::test]
async fn learner_does_not_vote_before_it_has_caught_up() {
    let mut cell = Cell::start_with_network(3).await;
    let leader = cell.leader().await;
    let session = open_session(&cell, 60_000).await;
    // Enough entries that the learner lags, and large enough that replication takes time.
    let value = "x".repeat(3_000);
    let mut http = Http::connect(&cell.node(leader).listen_addr).await.unwrap();
    for number in 0..800 {
        let body = json!({"key": format!("k{}", number % 10), "value": value});
        http.post("/v1/value/put", &body).await.unwrap().ok();
    }
    cell.plan_node_with_network(4).await;
    cell.spawn(4);
    cell.node(4).until_log("member add").await;
    cell.network.slow_down(leader, 4, 200_000);
    let words = format!("4={}", cell.node(4).address);
    let url = cell.url();
    let mut command = tokio::process::Command::from(crate::harness::node::lockkeeper());
    command.args(["member", "add", &words]).env("LOCKKEEPER_ENGINE", url).kill_on_drop(true);
    let mut adding = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let learner = async || {
        let status = cell.node(leader).status().await?;
        status["members"].as_array()?.iter().find(|member| member["node_id"] == 4).cloned()
    };
    let seen = until("the learner to be listed", async || learner().await).await;
    assert_eq!(seen["voter"], false, "{seen}");

    let gone = cell.others(leader)[0];
    cell.node(gone).signal(rustix::process::Signal::STOP);
    let began = Instant::now();
    let mut granted = 0;
    while began.elapsed() < Duration::from_secs(4) {
        granted += 1;
        grant(&cell, &session, &format!("lock-{granted}")).await;
        let seen = until("the leader to answer", async || learner().await).await;
        assert_eq!(seen["voter"], false, "the learner lags by {} entries: {seen}", seen["lag"]);
    }
    println!("{granted} grants while the learner caught up and one of three nodes was stopped");
    assert!(granted > 10, "the cell stalled");
    assert!(adding.try_wait().unwrap().is_none(), "the node was added too early");

    cell.network.heal();
    cell.resume(gone);
    let ended = until("the node to be added", async || adding.try_wait().unwrap()).await;
    assert!(ended.success());
    assert_eq!(voters(&cell).await, [1, 2, 3, 4]);
    cell.until_in_sync(&[1, 2, 3, 4]).await;
}

/// A leader that transfers its leadership steps down before its successor leads. If the successor is stopped at that moment,
/// the cell must not wait for it.
#[tokio::test]
async fn cell_recovers_when_the_successor_stops_during_a_leadership_transfer() {
    let cell = Cell::start(3).await;
    let leader = cell.until_agreed().await;
    let session = open_session(&cell, 60_000).await;
    grant(&cell, &session, "before").await;
    cell.until_in_sync(&[1, 2, 3]).await;
    // Both followers have all entries: the leader picks the one with the highest id.
    let successor = cell.others(leader).into_iter().max().unwrap();
    cell.stop(successor);
    let began = Instant::now();
    // Removing the leader makes it transfer its leadership first. The outcome of the request does not matter here.
    let path = "/v1/member/remove";
    let removal =
        tokio::time::timeout(Duration::from_millis(100), cell.post(leader, path, json!({"node_id": leader})));
    println!("{:?}", removal.await.map(|answer| answer.status));
    cell.node(leader).until_log("handing over the leadership").await;
    grant(&cell, &session, "after").await;
    let silence = began.elapsed();
    println!("a grant {} ms after the transfer began", silence.as_millis());
    // Generous, for a busy machine. A cell that waits for the successor would stall for ever.
    assert!(silence < Duration::from_secs(15), "no grant for {silence:?}");
    cell.resume(successor);
    cell.until_in_sync(&[1, 2, 3]).await;
}
