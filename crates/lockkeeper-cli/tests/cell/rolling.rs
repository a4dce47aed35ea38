//! A rolling restart under load.

use std::time::Duration;

use lockkeeper::{GuardState, Keeper};

use crate::harness::cell::Cell;
use crate::harness::client::Load;

#[tokio::test]
async fn rolling_restart_under_load_fails_no_request() {
    let mut cell = Cell::start(3).await;
    let keeper = cell.keeper(Keeper::builder().ttl(Duration::from_secs(5))).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let waiting = keeper.lock("kept");
    let next = tokio::spawn(async move { waiting.acquire().await });
    let mut load = Load::start_with_values(&cell, 4).await;

    for round in 0..2 {
        for id in 1..=3 {
            let was_leader = cell.leader().await == id;
            let ended = cell.node_mut(id).term().await;
            assert_eq!(ended.code(), Some(0), "node {id} in round {round}");
            load.until_more(40).await;
            cell.node(id).empty_log();
            cell.spawn(id);
            // Like an operator: restart the next node only when this one is back.
            cell.node(id).until_log("log read").await;
            load.until_more(40).await;
            until_caught_up(&cell, id).await;
            println!("node {id} restarted{}", if was_leader { ", the leader" } else { "" });
            assert_eq!(guard.state(), GuardState::Held);
        }
    }
    let done = load.end().await;
    println!("{done} pairs of acquire and release, none failed");
    guard.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    cell.until_in_sync(&[1, 2, 3]).await;
}

async fn until_caught_up(cell: &Cell, id: u64) {
    crate::harness::until("the node to be ready", async || {
        let answer = crate::harness::http::quick_get(&cell.node(id).listen_addr, "/readyz").await?;
        (answer.status == 200).then_some(())
    })
    .await;
    let leader = cell.leader().await;
    crate::harness::until("the node to catch up", async || {
        let status = cell.node(leader).status().await?;
        let members = status["members"].as_array()?;
        let member = members.iter().find(|member| member["node_id"] == id)?;
        (leader == id || member["lag"].as_u64()? < 100).then_some(())
    })
    .await;
}
