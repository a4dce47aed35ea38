//! Redis.

use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::Site;
use crate::servers::redis::Redis;
use crate::support::soon;

#[tokio::test]
async fn volatile_tokens_fence_only_if_accepted_explicitly() {
    let redis = Redis::start();
    let error = Keeper::connect(&redis.url()).await.unwrap_err();
    assert_eq!(error.code(), "unsupported");
    assert!(error.to_string().contains("accept_volatile_tokens"), "{error}");
    let keeper = Keeper::builder().accept_volatile_tokens().connect(&redis.url()).await.unwrap();
    assert!(keeper.lock("a").acquire().await.unwrap().token().0 > 0);
}

#[tokio::test]
async fn tokens_increase_after_redis_lost_its_data() {
    let mut redis = Redis::with(vec!["--appendonly", "no"]);
    let token = |url: String| async move {
        let keeper = Keeper::builder().accept_volatile_tokens().connect(&url).await.unwrap();
        let guard = keeper.lock("a").acquire().await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        token
    };
    let before = token(redis.url()).await;
    redis.kill();
    redis.restart();
    assert_eq!(redis.command(&["DBSIZE"]), "0");
    assert!(token(redis.url()).await > before);
}

#[tokio::test]
async fn scripts_missing_on_the_server_are_loaded_again() {
    let redis = Redis::start();
    let (keeper, _) = connect(&redis.url()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    redis.command(&["SCRIPT", "FLUSH"]);
    guard.release().await.unwrap();
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn release_wakes_one_waiter_of_a_keeper_without_polling() {
    let redis = Redis::start();
    let (holder, _) = connect(&redis.url()).await;
    let (keeper, _) = connect(&redis.url()).await;
    let guard = holder.lock("busy").ttl(30.secs()).acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let lock = keeper.lock("busy").ttl(30.secs());
        waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    // The head of the queue has subscribed.
    while !redis.command(&["PUBSUB", "NUMSUB", "lockkeeper:lock:busy:free"]).ends_with("1") {
        tokio::time::sleep(5.millis()).await;
    }
    redis.command(&["CONFIG", "RESETSTAT"]);
    guard.release().await.unwrap();
    while let Some(ended) = soon(waiters.join_next()).await {
        ended.unwrap();
    }
    let statistics = redis.command(&["INFO", "commandstats"]);
    let calls = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    let calls: u32 = calls.split(',').next().unwrap().parse().unwrap();
    // A take and a release for each waiter, and a retry for some. Waking all waiters would cost 50 takes for each release.
    assert!(calls < 260, "{calls} scripts for 50 waiters");
}
