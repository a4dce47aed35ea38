//! Mutual exclusion between processes, keepers and tasks, and tokens that increase with each grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper::TokenKind;
use lockkeeper::prelude::*;

use crate::child::{self, Child, connect};
use crate::servers::Site;
use crate::support::{soon, unfenced};

const CONTENDERS: usize = 16;
const ROUNDS: usize = 5;
const WAITERS: usize = 50;
const KEEPERS: usize = 5;

pub(crate) fn processes_exclude_each_other<S: Site>() {
    let site = S::start();
    let folder = tempfile::tempdir().unwrap();
    let (url, path) = (site.url(), folder.path().to_string_lossy().into_owned());
    let rounds = ROUNDS.to_string();
    let settings = [("URL", url.as_str()), ("LOCK", "contended"), ("FOLDER", &path), ("ROUNDS", &rounds)];
    let children: Vec<Child> = (0..CONTENDERS).map(|_| Child::start("contender", &settings)).collect();
    for child in children {
        child.wait_for_success();
    }
    check_log(folder.path(), CONTENDERS * ROUNDS);
}

/// For an engine whose locks exist in one process only.
pub(crate) async fn keepers_exclude_each_other<S: Site>() {
    let site = S::start();
    let folder = tempfile::tempdir().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONTENDERS {
        let (url, path) = (site.url(), folder.path().to_owned());
        tasks.spawn(async move { child::contend_for(&url, "contended", &path, ROUNDS).await });
    }
    while let Some(ended) = soon(tasks.join_next()).await {
        ended.unwrap();
    }
    check_log(folder.path(), CONTENDERS * ROUNDS);
}

/// Checks the log of the contenders: the number of grants, and that their tokens increase.
fn check_log(folder: &std::path::Path, expected: usize) {
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let tokens: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), expected);
    if tokens[0] != 0 {
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens must increase: {tokens:?}");
    }
}

pub(crate) async fn waiters_hold_the_lock_one_at_a_time_and_in_order_within_a_keeper<S: Site>() {
    let site = S::start();
    let (first, mut keepers) = (unfenced(&site).await, Vec::new());
    let guard = first.lock("queue").ttl(30.secs()).acquire().await.unwrap();
    for _ in 0..KEEPERS {
        keepers.push(unfenced(&site).await);
    }
    let holders = Arc::new(AtomicUsize::new(0));
    let (grants, mut granted) = tokio::sync::mpsc::channel(WAITERS);
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..WAITERS {
        let lock = keepers[number % KEEPERS].lock("queue").ttl(30.secs());
        let (holders, grants) = (holders.clone(), grants.clone());
        waiters.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two tasks hold the lock");
            grants.send(number).await.unwrap();
            tokio::task::yield_now().await;
            holders.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        });
        // Spaced out, so that the order of arrival is known.
        tokio::time::sleep(2.millis()).await;
    }
    guard.release().await.unwrap();
    while let Some(ended) = soon(waiters.join_next()).await {
        ended.unwrap();
    }
    let mut order = Vec::new();
    while let Ok(number) = granted.try_recv() {
        order.push(number);
    }
    assert_eq!(order.len(), WAITERS);
    for keeper in 0..KEEPERS {
        let in_keeper: Vec<_> = order.iter().filter(|number| *number % KEEPERS == keeper).collect();
        assert!(in_keeper.is_sorted(), "the order within a keeper is not FIFO: {in_keeper:?}");
    }
}

pub(crate) async fn tokens_increase_over_1000_grants_and_a_restart<S: Site>() {
    let mut site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let Some(fenced) = fenced else {
        assert_eq!(keeper.capabilities().token, TokenKind::None);
        let error = keeper.fenced().unwrap_err();
        assert_eq!(error.code(), "unsupported", "{error}");
        return;
    };
    let mut last = 0;
    for _ in 0..1_000 {
        let guard = fenced.lock("tokens").acquire().await.unwrap();
        assert!(guard.token().0 > last, "{} after {last}", guard.token().0);
        assert!(guard.sequencer().contains("tokens"));
        last = guard.token().0;
        guard.release().await.unwrap();
    }
    drop(fenced);
    soon(keeper.close()).await.unwrap();
    drop(keeper);
    let site = tokio::task::spawn_blocking(move || {
        site.kill();
        site.restart();
        site
    });
    let site = site.await.unwrap();
    let (_keeper, fenced) = connect(&site.url()).await;
    let guard = fenced.unwrap().lock("tokens").acquire().await.unwrap();
    assert!(guard.token().0 > last, "{} after {last} and a restart", guard.token().0);
}
