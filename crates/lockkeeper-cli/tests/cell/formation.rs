//! Nodes form a cell by themselves.

use std::collections::BTreeSet;

use crate::harness::cell::Cell;
use crate::harness::client::{grant, open_session};
use crate::harness::http;
use crate::harness::until;
use crate::health::is_serving;

#[tokio::test]
async fn cell_forms_in_any_start_order() {
    for order in [[3, 1, 2], [2, 3, 1]] {
        let mut cell = Cell::plan(3);
        for id in &order[..2] {
            cell.spawn(*id);
            cell.node(*id).until_log("waiting for").await;
            let answer = cell.get(*id, "/readyz").await;
            assert_eq!(answer.status, 503, "{}", answer.body);
            assert!(!is_serving(&cell, *id).await, "a node that waits for its cell reports SERVING");
            let answer = cell.post(*id, "/v1/session/open", serde_json::json!({"ttl_ms": 10_000})).await;
            assert_eq!(
                (answer.status, answer.code()),
                (503, "unavailable"),
                "a cell needs all its nodes to form"
            );
        }
        cell.spawn(order[2]);
        cell.until_agreed().await;
        for id in order {
            // A follower is ready after the leader's first heartbeat.
            until("every node to report SERVING", async || is_serving(&cell, id).await.then_some(())).await;
        }

        let session = open_session(&cell, 10_000).await;
        grant(&cell, &session, "first").await;
        cell.until_in_sync(&order).await;
        let leader = cell.until_agreed().await;
        let mut names = BTreeSet::new();
        for id in order {
            let status = cell.node(id).until_status().await;
            assert_eq!(status["leader"], leader);
            assert_eq!(status["members"].as_array().unwrap().len(), 3);
            assert!(status["members"].as_array().unwrap().iter().all(|member| member["voter"] == true));
            names.insert(status["cell"].as_str().unwrap().to_owned());
        }
        assert_eq!(names.len(), 1, "one cell");
        assert!(!names.contains(""));
    }
}

#[tokio::test]
async fn cell_restarts_without_its_member_list() {
    let mut cell = Cell::start(3).await;
    cell.leader().await;
    let session = open_session(&cell, 60_000).await;
    let granted = grant(&cell, &session, "job").await;
    for id in 1..=3 {
        cell.kill(id);
    }
    for id in [2, 3, 1] {
        cell.spawn_with(id, &[]);
    }
    cell.leader().await;
    let seen = cell.read("/v1/lock?name=job").await;
    assert_eq!(seen["holders"][0]["token"], granted["token"], "{seen}");
}

#[tokio::test]
async fn members_can_use_a_separate_peer_port() {
    let mut cell = Cell::plan(3);
    let ports: Vec<_> = cell.nodes.iter().map(|node| node.listen_addr.replace(":74", ":75")).collect();
    // The list may name the peer ports or the client ports; for a new cell it is the same on all nodes.
    let list = (1..=3).map(|id| format!("{id}={}", ports[id - 1])).collect::<Vec<_>>().join(",");
    for id in [1, 2, 3] {
        cell.spawn_with(id, &["--cell", &list, "--peer-listen", &ports[id as usize - 1]]);
    }
    let leader = cell.until_agreed().await;
    let status = cell.node(leader).until_status().await;
    for (node, peer) in cell.nodes.iter().zip(&ports) {
        let member = &status["members"][node.id as usize - 1];
        assert_eq!(
            (member["address"].as_str(), member["peer_address"].as_str()),
            (Some(&*node.listen_addr), Some(&**peer))
        );
        // Clients are not served there.
        let answer = http::get(peer, "/v1/status").await;
        assert!(
            answer.is_err() || answer.is_ok_and(|answer| answer.status != 200),
            "a client is served on {peer}"
        );
    }
    // On a busy machine the leader may change at any time, so retry until the follower names the current one.
    until("a follower to name the leader", async || {
        let leader = cell.until_agreed().await;
        let answer = cell.get(cell.others(leader)[0], "/v1/lock?name=a").await;
        (answer.body["error"]["leader"] == cell.node(leader).listen_addr).then_some(())
    })
    .await;
    let leader = cell.until_agreed().await;
    // Fail-over works with separate ports.
    cell.kill(leader);
    cell.leader().await;
    let session = open_session(&cell, 10_000).await;
    grant(&cell, &session, "a").await;
}

#[tokio::test]
async fn node_that_waits_for_its_cell_can_be_stopped() {
    let mut cell = Cell::plan(2);
    cell.plan_node(3);
    cell.spawn(1);
    cell.node(1).until_log("waiting for").await;
    assert_eq!(cell.node_mut(1).term().await.code(), Some(0));
    // After a restart it waits again.
    cell.spawn_all();
    cell.leader().await;
    until("all nodes to be ready", async || {
        for node in &cell.nodes {
            (http::quick_get(&node.listen_addr, "/readyz").await?.status == 200).then_some(())?;
        }
        Some(())
    })
    .await;
}
