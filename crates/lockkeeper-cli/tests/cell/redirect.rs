//! Followers redirect clients to the leader; the library and the CLI follow by themselves.

use serde_json::json;

use crate::harness::cell::{Cell, text};
use crate::harness::client::{grant, open_session};
use crate::harness::until;
use lockkeeper::Keeper;

#[tokio::test]
async fn follower_redirects_every_request_to_the_leader() {
    let cell = Cell::start(3).await;
    let leader = cell.leader().await;
    let session = open_session(&cell, 60_000).await;
    grant(&cell, &session, "job").await;
    cell.until_in_sync(&[1, 2, 3]).await;

    let held = json!({"session": session, "lock": "job", "token": 1});
    let requests = [
        ("/v1/session/open", Some(json!({"ttl_ms": 10_000}))),
        ("/v1/session/keepalive", Some(json!({"session": session}))),
        ("/v1/lock/acquire", Some(json!({"session": session, "lock": "job"}))),
        ("/v1/lock/release", Some(held)),
        ("/v1/lock?name=job", None),
        ("/v1/locks", None),
        ("/v1/token/check", Some(json!({"lock": "job", "token": 1}))),
        ("/v1/value/put", Some(json!({"key": "k", "value": "v"}))),
        ("/v1/value?key=k", None),
        ("/v1/member/remove", Some(json!({"node_id": leader}))),
    ];
    for follower in cell.others(leader) {
        for (path, body) in &requests {
            // A follower that misses heartbeats on a busy machine knows no leader for a moment.
            let answer = until("the follower knows the leader", async || {
                let answer = match body {
                    Some(body) => cell.post(follower, path, body.clone()).await,
                    None => cell.get(follower, path).await,
                };
                (answer.code() != "unavailable").then_some(answer)
            })
            .await;
            assert_eq!((answer.status, answer.code()), (421, "not_leader"), "{path}: {}", answer.body);
            let leader = cell.leader().await;
            assert_eq!(answer.body["error"]["leader"], cell.node(leader).address, "{path}: {}", answer.body);
        }
    }
    let seen = cell.read("/v1/lock?name=job").await;
    assert_eq!(seen["holders"].as_array().unwrap().len(), 1, "none of the requests took effect: {seen}");
}

#[tokio::test]
async fn library_and_cli_reach_the_leader_from_any_node() {
    let cell = Cell::start(3).await;
    for node in &cell.nodes {
        let url = format!("lockkeeper://{}", node.address);
        let keeper = Keeper::connect(&url).await.unwrap();
        let guard = keeper.lock("from-anywhere").acquire().await.unwrap();
        keeper.value("k").fence(&guard).put(url.clone()).await.unwrap();
        assert_eq!(keeper.value("k").get().await.unwrap().unwrap().bytes, url.as_bytes());
        guard.release().await.unwrap();
        keeper.close().await.unwrap();

        let output = cell.cli_at(&url, &["run", "job", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]).await;
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).trim().parse::<u64>().unwrap() > 0);
        for words in [&["who", "job"][..], &["ls"], &["status"], &["member", "list"]] {
            let output = cell.cli_at(&url, words).await;
            assert!(output.status.success(), "{words:?} at node {}: {output:?}", node.id);
        }
    }
    // Also when the first host of the list is down.
    let mut cell = cell;
    let dead = cell.others(cell.leader().await)[0];
    cell.kill(dead);
    let hosts: Vec<_> =
        std::iter::once(dead).chain(cell.others(dead)).map(|id| cell.node(id).address.clone()).collect();
    let url = format!("lockkeeper://{}", hosts.join(","));
    for words in [&["run", "job", "--", "true"][..], &["who", "job"], &["member", "list"]] {
        let output = cell.cli_at(&url, words).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}
