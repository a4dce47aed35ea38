//! A node loses its data folder. It no longer knows its votes and promises, so it must not rejoin under its old identity.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::cell::{Cell, text};
use crate::harness::client::{Load, grant, open_session};
use crate::harness::until;

fn members(list: &Value) -> Vec<(u64, bool)> {
    let members = list["members"].as_array().unwrap();
    members.iter().map(|m| (m["node_id"].as_u64().unwrap(), m["voter"].as_bool().unwrap())).collect()
}

#[tokio::test]
async fn node_without_its_folder_is_refused_until_removed_and_added() {
    let mut cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let lost = cell.others(leader)[0];
    let session = open_session(&cell, 60_000).await;
    let granted = grant(&cell, &session, "job").await;
    let mut load = Load::start(&cell, 2).await;
    cell.kill(lost);
    std::fs::remove_dir_all(&cell.node(lost).data).unwrap();

    cell.node(lost).empty_log();
    cell.spawn(lost);
    let ended = cell.node_mut(lost).ended().await;
    let log = cell.node(lost).log_text();
    let message = log.lines().last().unwrap_or_default();
    assert_eq!(ended.code(), Some(1), "{log}");
    let (id, address) = (lost, cell.node(lost).address.clone());
    for part in [
        format!("knows node {id} with another data folder, and this one is empty"),
        "bring the old folder back".to_owned(),
        format!("lockkeeper member remove {id}"),
        format!("lockkeeper member add {id}={address}"),
    ] {
        assert!(message.contains(&part), "\"{part}\" is not in: {message}");
    }

    // Follow the advice of the message.
    let output = cell.cli(&["member", "remove", &id.to_string()]).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(members(&cell.json(&["member", "list"]).await).len(), 2);
    cell.spawn(id);
    cell.node(id).until_log("member add").await;
    let output = cell.cli(&["member", "add", &format!("{id}={address}")]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(members(&cell.json(&["member", "list"]).await), [(1, true), (2, true), (3, true)]);
    load.until_more(50).await;
    println!("{} pairs of acquire and release, none failed", load.end().await);
    cell.until_in_sync(&[1, 2, 3]).await;

    // The node and one other form a majority.
    let leader = cell.leader().await;
    let other = (1..=3).find(|other| *other != id && *other != leader).unwrap_or(id);
    if other != id {
        cell.kill(other);
    }
    let seen = cell.read("/v1/lock?name=job").await;
    assert_eq!(seen["holders"][0]["token"], granted["token"]);
    grant(&cell, &session, "after").await;
}

/// The same, but the node cannot ask the others whether it is known: it must not accept their messages either.
#[tokio::test]
async fn node_without_its_folder_accepts_no_messages_for_the_lost_folder() {
    let mut cell = Cell::start_with_network(3).await;
    let leader = cell.leader().await;
    let lost = cell.others(leader)[0];
    let session = open_session(&cell, 60_000).await;
    cell.kill(lost);
    std::fs::remove_dir_all(&cell.node(lost).data).unwrap();
    for other in cell.others(lost) {
        cell.network.cut(lost, other);
    }
    cell.node(lost).empty_log();
    cell.spawn(lost);
    cell.node(lost).until_log("waiting for").await;
    let began = Instant::now();
    let mut checks = 0;
    while began.elapsed() < Duration::from_secs(3) || checks < 20 {
        grant(&cell, &session, &format!("lock-{checks}")).await;
        checks += 1;
        let status = until("the node to answer", async || cell.node(lost).status().await).await;
        assert_eq!(status["cell"], "", "the node joined by a message for the lost folder: {status}");
        assert_eq!(status["applied_index"], 0, "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // When it can ask again, it is refused.
    cell.network.heal();
    assert_eq!(cell.node_mut(lost).ended().await.code(), Some(1));
    assert!(cell.node(lost).log_text().contains("with another data folder, and this one is empty"));
}
