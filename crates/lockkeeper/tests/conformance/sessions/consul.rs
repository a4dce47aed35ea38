//! Consul.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::prelude::*;
use lockkeeper_testkit::wire::Wire;

use super::shared::{self, until_queue};
use crate::servers::Site;
use crate::servers::consul::Consul;
use crate::support::{soon, until};

#[tokio::test]
async fn every_operation_leaves_nothing_behind() {
    shared::operations_leave_nothing_behind::<Consul>().await;
}

#[tokio::test]
async fn partitioned_holder_detects_the_loss_before_the_lock_is_granted_again() {
    shared::partition::<Consul>(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn guard_and_waiter_survive_a_restart_of_the_server() {
    shared::restart::<Consul>(Duration::from_secs(20)).await;
}

#[tokio::test]
async fn connect_error_names_an_unreachable_or_wrong_server() {
    shared::connect_errors("consul").await;
}

#[tokio::test]
async fn queue_of_a_keeper_is_fifo() {
    let site = Consul::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    let guard = soon(keeper.lock("q").acquire()).await.unwrap();
    let mut waiters = Vec::new();
    for index in 0..5 {
        let lock = keeper.lock("q");
        waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        until_queue(&keeper, "q", 1, index + 1).await;
    }
    waiters.remove(2).abort();
    until_queue(&keeper, "q", 1, 4).await;
    let mut token = guard.token();
    guard.release().await.unwrap();
    for waiter in waiters {
        let guard = soon(waiter).await.unwrap();
        assert_eq!(guard.token().0, token.0 + 1, "one acquire for each grant");
        token = guard.token();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn lock_is_not_granted_during_its_lock_delay() {
    let site = Consul::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    let other = Keeper::connect(&site.url()).await.unwrap();
    let guard = soon(keeper.lock("a").lock_delay(2.secs()).acquire()).await.unwrap();
    let session = other.who("a").await.unwrap().holders[0].session.clone();
    let started = std::time::Instant::now();
    site.put(&format!("/v1/session/destroy/{session}"));
    assert_eq!(other.lock("a").no_wait().acquire().await.unwrap_err().code(), "busy");
    let next = soon(other.lock("a").acquire()).await.unwrap();
    assert!(started.elapsed() >= 2.secs(), "{:?}", started.elapsed());
    assert!(next.token() > guard.token());
    assert_eq!(soon(guard.lost()).await, Loss::SessionExpired);
}

#[tokio::test]
async fn behavior_delete_removes_the_key_and_makes_the_token_volatile() {
    let site = Consul::start();
    let url = format!("{}?behavior=delete", site.url());
    let error = Keeper::connect(&url).await.unwrap_err();
    assert_eq!(error.code(), "unsupported", "{error}");
    let keeper = Keeper::connect_unfenced(&url).await.unwrap();
    for _ in 0..3 {
        soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
    }
    assert_eq!(site.get("/v1/kv/lockkeeper/locks/a"), "");
    let codes: Vec<_> = keeper.examine().await.unwrap().iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["single-node", "token-starts-again"]);
    let error = Keeper::connect(&format!("{}?behavior=forget", site.url())).await.unwrap_err();
    assert_eq!(error.code(), "invalid", "{error}");
}

#[tokio::test]
async fn missing_or_wrong_acl_token_is_reported() {
    let acl = r#", "acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": "4a8e6a2c-8f0e-4d9c-9a51-7d4b0d5f2f10", "agent": "4a8e6a2c-8f0e-4d9c-9a51-7d4b0d5f2f10"}}"#;
    let site = Consul::with(acl);
    let error = Keeper::connect(&site.url()).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    assert!(error.to_string().contains("consul://:TOKEN@"), "{error}");
    let wrong = format!("consul://:00000000-8f0e-4d9c-9a51-7d4b0d5f2f10@{}", site.address);
    let error = Keeper::connect(&wrong).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    let right = format!("consul://:4a8e6a2c-8f0e-4d9c-9a51-7d4b0d5f2f10@{}", site.address);
    // Consul accepts requests shortly before it has created its initial token.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let keeper = loop {
        match Keeper::connect(&right).await {
            Ok(keeper) => break keeper,
            Err(error) if error.code() == "unauthenticated" && std::time::Instant::now() < until => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn session_depends_only_on_its_time_to_live() {
    let site = Consul::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    let error = keeper.lock("a").ttl(5.secs()).acquire().await.unwrap_err();
    assert_eq!(error.code(), "invalid", "{error}");
    let _guard = soon(keeper.lock("a").acquire()).await.unwrap();
    let sessions = site.get("/v1/session/list");
    assert!(sessions.contains(r#""NodeChecks":[]"#) && sessions.contains(r#""LockDelay":0"#), "{sessions}");
}

#[tokio::test]
async fn writer_is_granted_when_the_last_reader_has_left_or_expired() {
    let site = Consul::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    let other = Keeper::connect(&site.url()).await.unwrap();
    let before = soon(keeper.lock("a").acquire()).await.unwrap();
    let last = before.token();
    before.release().await.unwrap();
    let leaving = soon(keeper.lock("a").shared().acquire()).await.unwrap();
    let expiring = soon(other.lock("a").shared().acquire()).await.unwrap();
    assert_eq!((leaving.token().0, expiring.token().0), (last.0 + 1, last.0 + 2));
    let session = keeper.who("a").await.unwrap().holders[1].session.clone();
    let lock = keeper.lock("a");
    let writer = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_queue(&keeper, "a", 2, 1).await;
    leaving.release().await.unwrap();
    until_queue(&keeper, "a", 1, 1).await;
    site.put(&format!("/v1/session/destroy/{session}"));
    let writer = soon(writer).await.unwrap();
    assert!(writer.token() > expiring.token());
    assert_eq!(soon(expiring.lost()).await, Loss::SessionExpired);
    assert_eq!(other.lock("a").shared().no_wait().acquire().await.unwrap_err().code(), "busy");
    writer.release().await.unwrap();
    assert_eq!(
        site.get("/v1/kv/lockkeeper/shares/?keys"),
        "",
        "the writer has not removed the expired share"
    );
}

#[tokio::test]
async fn permits_never_exceed_the_capacity() {
    const PERMITS: u32 = 3;
    let site = Consul::start();
    let taken = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        // Consul may take longer than the default timeout on a busy machine.
        let keeper = Keeper::builder().request_timeout(60.secs()).connect(&site.url()).await.unwrap();
        for _ in 0..3 {
            let (lock, taken) = (keeper.lock("p").capacity(PERMITS), Arc::clone(&taken));
            tasks.push(tokio::spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..6 {
                    let guard = lock.acquire().await.unwrap();
                    let now = taken.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= PERMITS, "{now} permits are taken");
                    tokens.push(guard.token());
                    tokio::time::sleep(2.millis()).await;
                    taken.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
                tokens
            }));
        }
    }
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.extend(soon(task).await.unwrap());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 4 * 3 * 6, "each grant has its own token");
    assert_eq!(site.get("/v1/kv/lockkeeper/shares/?keys"), "");
}

#[tokio::test]
async fn force_release_removes_more_shares_than_fit_into_one_transaction() {
    let site = Consul::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..60 {
        readers.push(soon(keeper.lock("a").shared().acquire()).await.unwrap());
    }
    let forced = keeper.force_release("a", "a test").await.unwrap();
    assert_eq!(forced.holders, 60);
    let writer = soon(keeper.lock("a").no_wait().acquire()).await.unwrap();
    assert!(writer.token().0 > forced.last_token);
    assert!(forced.last_token > readers[59].token().0);
    let error = readers.remove(0).release().await.unwrap_err();
    assert_eq!(error.code(), "not_held", "{error}");
    assert_eq!(
        keeper.who("a").await.unwrap().holders.len(),
        1,
        "the late release has affected the new holder"
    );
    let error = keeper.lock("b").shared().lock_delay(1.secs()).acquire().await.unwrap_err();
    assert_eq!(error.code(), "unsupported", "{error}");
}

#[tokio::test]
async fn dropped_acquire_in_flight_cannot_reset_the_token() {
    let site = Consul::start();
    let proxy = Wire::to(site.address).unwrap();
    let keeper = Keeper::builder().ttl(20.secs()).request_timeout(300.millis());
    let keeper = keeper.connect(&format!("consul://{}", proxy.address)).await.unwrap();
    let direct = Keeper::connect(&site.url()).await.unwrap();
    let mut last = None;
    for _ in 0..3 {
        let guard = soon(keeper.lock("g").acquire()).await.unwrap();
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
    let key = || site.get("/v1/kv/lockkeeper/locks/g");
    let before = key();
    proxy.cut();
    let lock = keeper.lock("g");
    let acquire = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(50.millis()).await;
    acquire.abort();
    let _ = acquire.await;
    assert_eq!(key(), before, "the request has arrived although the proxy is cut");
    proxy.heal();
    until("the key has changed, so a request in flight fails", async || key() != before).await;
    let next = soon(direct.lock("g").acquire()).await.unwrap();
    assert!(Some(next.token()) > last, "{} after {last:?}", next.token());
}
