//! Consul.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::prelude::*;
use lockkeeper_testkit::wire::Wire;

use super::shared::{self, soon, until_queue};
use crate::servers::Site;
use crate::servers::consul::Consul;

#[tokio::test]
async fn the_same_lock_as_everywhere() {
    shared::all::<Consul>().await;
}

#[tokio::test]
async fn a_holder_that_is_cut_off_is_told_before_the_next_is_let_in() {
    shared::cut_and_healed::<Consul>(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_guard_and_a_waiter_survive_a_restart_of_the_server() {
    shared::restarted::<Consul>(Duration::from_secs(20)).await;
}

#[tokio::test]
async fn nobody_there_and_somebody_else_there() {
    shared::absent_or_wrong("consul").await;
}

#[tokio::test]
async fn tasks_of_one_keeper_are_let_in_as_they_came() {
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
async fn a_lock_stays_closed_for_its_delay_when_the_session_ends() {
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
async fn with_behavior_delete_the_key_goes_and_the_token_counts_as_volatile() {
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
async fn a_token_is_asked_for_in_plain_words() {
    let acl = r#", "acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": "4a8e6a2c-8f0e-4d9c-9a51-7d4b0d5f2f10", "agent": "4a8e6a2c-8f0e-4d9c-9a51-7d4b0d5f2f10"}}"#;
    let site = Consul::with(acl);
    let error = Keeper::connect(&site.url()).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    assert!(error.to_string().contains("consul://:TOKEN@"), "{error}");
    let wrong = format!("consul://:00000000-8f0e-4d9c-9a51-7d4b0d5f2f10@{}", site.address);
    let error = Keeper::connect(&wrong).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated", "{error}");
    let right = format!("consul://:4a8e6a2c-8f0e-4d9c-9a51-7d4b0d5f2f10@{}", site.address);
    // Consul takes requests a moment before it knows its own first token.
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
async fn the_session_hangs_on_its_time_to_live_alone() {
    let site = Consul::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    let error = keeper.lock("a").ttl(5.secs()).acquire().await.unwrap_err();
    assert_eq!(error.code(), "invalid", "{error}");
    let _guard = soon(keeper.lock("a").acquire()).await.unwrap();
    let sessions = site.get("/v1/session/list");
    assert!(sessions.contains(r#""NodeChecks":[]"#) && sessions.contains(r#""LockDelay":0"#), "{sessions}");
}

#[tokio::test]
async fn a_writer_is_let_in_when_the_last_reader_is_gone_or_dead() {
    let site = Consul::start();
    let keeper = Keeper::connect(&site.url()).await.unwrap();
    let other = Keeper::connect(&site.url()).await.unwrap();
    let before = soon(keeper.lock("a").acquire()).await.unwrap();
    let last = before.token();
    before.release().await.unwrap();
    let leaves = soon(keeper.lock("a").shared().acquire()).await.unwrap();
    let dies = soon(other.lock("a").shared().acquire()).await.unwrap();
    assert_eq!((leaves.token().0, dies.token().0), (last.0 + 1, last.0 + 2));
    let dead = keeper.who("a").await.unwrap().holders[1].session.clone();
    let lock = keeper.lock("a");
    let writer = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_queue(&keeper, "a", 2, 1).await;
    leaves.release().await.unwrap();
    until_queue(&keeper, "a", 1, 1).await;
    site.put(&format!("/v1/session/destroy/{dead}"));
    let writer = soon(writer).await.unwrap();
    assert!(writer.token() > dies.token());
    assert_eq!(soon(dies.lost()).await, Loss::SessionExpired);
    assert_eq!(other.lock("a").shared().no_wait().acquire().await.unwrap_err().code(), "busy");
    writer.release().await.unwrap();
    assert_eq!(site.get("/v1/kv/lockkeeper/shares/?keys"), "", "the writer has swept");
}

#[tokio::test]
async fn permits_are_never_given_twice() {
    const PERMITS: u32 = 3;
    let site = Consul::start();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let keeper = Keeper::connect(&site.url()).await.unwrap();
        for _ in 0..3 {
            let (lock, inside) = (keeper.lock("p").capacity(PERMITS), Arc::clone(&inside));
            tasks.push(tokio::spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..6 {
                    let guard = lock.acquire().await.unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= PERMITS, "{now} are in");
                    tokens.push(guard.token());
                    tokio::time::sleep(2.millis()).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
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
    assert_eq!(tokens.len(), 4 * 3 * 6, "each grant has a token of its own");
    assert_eq!(site.get("/v1/kv/lockkeeper/shares/?keys"), "");
}

#[tokio::test]
async fn all_who_share_are_thrown_out_however_many() {
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
    assert_eq!(keeper.who("a").await.unwrap().holders.len(), 1, "the late release has touched nobody");
    let error = keeper.lock("b").shared().lock_delay(1.secs()).acquire().await.unwrap_err();
    assert_eq!(error.code(), "unsupported", "{error}");
}

#[tokio::test]
async fn a_request_that_is_given_up_in_doubt_takes_no_token_back() {
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
    let asks = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(50.millis()).await;
    asks.abort();
    let _ = asks.await;
    assert_eq!(key(), before, "nothing of it has arrived");
    proxy.heal();
    shared::until("what is on its way can never succeed", async || key() != before).await;
    let next = soon(direct.lock("g").acquire()).await.unwrap();
    assert!(Some(next.token()) > last, "{} after {last:?}", next.token());
}
