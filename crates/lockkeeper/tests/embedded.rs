//! The embedded engine, in memory and in a folder.
#![allow(clippy::unwrap_used)]

mod common;

use std::future::Future;
use std::task::Poll;

use common::{check_engine, soon, until};
use lockkeeper::prelude::*;

#[tokio::test]
async fn engine_contract_in_memory_on_a_current_thread_runtime() {
    check_engine("embedded:", "current-thread").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_contract_in_memory_on_a_multi_thread_runtime() {
    check_engine("embedded:", "multi-thread").await;
}

#[tokio::test]
async fn engine_contract_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    check_engine(&format!("embedded:{}", folder.path().display()), "folder").await;
}

#[tokio::test]
async fn tokens_and_values_in_a_folder_are_durable() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().display());
    let mut last = None;
    for round in 0..3 {
        let keeper = Keeper::connect(&url).await.unwrap();
        let guard = soon(keeper.lock("a").acquire()).await.unwrap();
        assert!(last.is_none_or(|last| guard.token() > last), "round {round}");
        last = Some(guard.token());
        let value = keeper.value("round").get().await.unwrap();
        assert_eq!(value.map(|value| value.bytes), (round > 0).then(|| vec![round - 1]));
        keeper.value("round").fence(&guard).put(vec![round]).await.unwrap();
        // Closed in the first round, only dropped in the others.
        if round == 0 {
            keeper.close().await.unwrap();
        }
        drop((keeper, guard));
    }
}

#[tokio::test]
async fn keepers_of_one_folder_share_one_table_for_any_spelling_of_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let one = Keeper::connect(&format!("embedded:{}", folder.path().display())).await.unwrap();
    let two = Keeper::connect(&format!("embedded:{}/./", folder.path().display())).await.unwrap();
    let guard = one.lock("a").acquire().await.unwrap();
    assert_eq!(two.lock("a").no_wait().acquire().await.unwrap_err().code(), "busy");
    drop(guard);
    until(&two, "a", 0, 0).await;
}

/// A dropped connect must not leave the folder locked.
#[tokio::test]
async fn connect_dropped_at_any_await_releases_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().display());
    for polls in 0.. {
        let builder = Keeper::builder();
        let mut connecting = Box::pin(builder.connect(&url));
        let mut left = polls;
        let finished = std::future::poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            connecting.as_mut().poll(context).map(Some)
        })
        .await;
        drop(connecting);
        let again =
            Keeper::connect(&url).await.unwrap_or_else(|error| panic!("after {polls} polls: {error}"));
        let guard = soon(again.lock("a").acquire()).await.unwrap();
        guard.release().await.unwrap();
        again.close().await.unwrap();
        drop(again);
        if let Some(connected) = finished {
            connected.unwrap();
            assert!(polls > 2, "it was dropped at only {polls} awaits");
            return;
        }
    }
}

#[tokio::test]
async fn unusable_folder_is_reported() {
    let error = Keeper::connect("embedded:/dev/null/x").await.unwrap_err();
    assert_eq!(error.code(), "unavailable");
    assert!(error.to_string().contains("/dev/null/x"), "{error}");
}

#[tokio::test]
async fn history_audit_top_and_blocked_are_reported() {
    let folder = tempfile::tempdir().expect("create a folder");
    let url = format!("embedded:{}", folder.path().display());
    let keeper = Keeper::builder().owner("anna").connect(&url).await.expect("connect");
    let guard = keeper.lock("job").acquire().await.expect("acquire");
    let top = keeper.top(0).await.expect("answer");
    assert_eq!((top.longest_held[0].lock.as_str(), top.contended.len()), ("job", 0));
    let waits = keeper.clone();
    let waiting = tokio::spawn(async move { waits.lock("job").acquire().await });
    let blocked = loop {
        let blocked = keeper.blocked("job").await.expect("answer");
        if !blocked.is_empty() {
            break blocked;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((blocked[0].lock.as_str(), blocked[0].holder.as_str()), ("job", "anna"));
    guard.release().await.expect("release");
    waiting.await.expect("no panic").expect("acquire").release().await.expect("release");
    let events = keeper.history("job", 0).await.expect("answer");
    let words: Vec<&str> = events.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(words, ["released", "granted", "released", "granted"]);
    assert!(events.iter().all(|event| event.owner == "anna"));
    keeper.force_release("job", "to see").await.expect("answer");
    let acts = keeper.audit(1).await.expect("answer").acts;
    assert_eq!((acts[0].what.as_str(), acts[0].reason.as_deref()), ("force_release", Some("to see")));
    keeper.close().await.expect("close");
}
