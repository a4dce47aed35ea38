//! The client against a real node over the network.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/node.rs"]
mod node;

use common::{check_engine, soon, until};
use lockkeeper::prelude::*;
use lockkeeper::{Event, GuardState};
use node::TestNode;

#[tokio::test]
async fn engine_contract_on_a_current_thread_runtime() {
    let node = TestNode::start(None, "127.0.0.1:0");
    check_engine(&node.url(), "current-thread").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_contract_on_a_multi_thread_runtime() {
    let node = TestNode::start(None, "127.0.0.1:0");
    check_engine(&node.url(), "multi-thread").await;
}

#[tokio::test]
async fn next_host_of_the_url_is_tried() {
    let node = TestNode::start(None, "127.0.0.1:0");
    let keeper = Keeper::connect(&format!("lockkeeper://127.0.0.1:1,{}", node.address)).await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn connect_error_names_address_cause_and_next_step() {
    let keeper = Keeper::builder().connect_timeout(300.millis()).connect("lockkeeper://127.0.0.1:1").await;
    let error = keeper.unwrap_err();
    assert_eq!(error.code(), "unavailable");
    let text = error.to_string();
    for part in ["127.0.0.1:1", "refused", "lockkeeper serve", "--engine"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn guard_and_waiter_survive_a_restart_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = TestNode::start(Some(folder.path().to_owned()), "127.0.0.1:0");
    let (keeper, other) =
        (Keeper::connect(&node.url()).await.unwrap(), Keeper::connect(&node.url()).await.unwrap());
    let guard = keeper.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = other.lock("a");
        async move { lock.acquire().await }
    });
    until(&keeper, "a", 1, 1).await;
    let mut events = keeper.events();
    let address = node.address.to_string();
    tokio::task::spawn_blocking(move || {
        node.stop();
        TestNode::start(Some(folder.path().to_owned()), &address)
    })
    .await
    .map(|node| async move {
        loop {
            if let Event::Connected { .. } = soon(events.next()).await.unwrap() {
                break;
            }
        }
        until(&keeper, "a", 1, 1).await;
        assert_eq!(guard.state(), GuardState::Held);
        let token = guard.token();
        guard.release().await.unwrap();
        let next = soon(waiter).await.unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
        drop(node);
    })
    .unwrap()
    .await;
}

#[tokio::test]
async fn guard_is_lost_after_its_deadline_and_grace_without_a_node() {
    let mut node = TestNode::start(None, "127.0.0.1:0");
    let keeper = Keeper::builder().ttl(400.millis()).grace(200.millis()).connect(&node.url()).await.unwrap();
    let guard = keeper.lock("a").acquire().await.unwrap();
    let mut changes = guard.changes();
    assert_eq!(changes.next().await, Some(GuardState::Held));
    tokio::task::spawn_blocking(move || node.stop()).await.unwrap();
    assert_eq!(soon(changes.next()).await, Some(GuardState::Jeopardy));
    assert_eq!(soon(changes.next()).await, Some(GuardState::Lost));
    assert_eq!(soon(keeper.lock("a").wait(100.millis()).acquire()).await.unwrap_err().code(), "unavailable");
}
