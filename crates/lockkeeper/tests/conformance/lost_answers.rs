//! Answers that are lost on their way: what was asked may have happened, and nobody knows.

use std::time::{Duration, Instant};

use lockkeeper::prelude::*;
use lockkeeper::{GuardState, Token};
use lockkeeper_testkit::wire::Wire;

use crate::cases::{soon, until_nothing_is_left};
use crate::child::connect;
use crate::servers::Site;
use crate::servers::redis::Redis;

/// Requests whose answers are lost, given up by their callers: nothing of them appears later.
pub(crate) async fn lost_answers_leave_no_ghost<S: Site>() {
    let site = S::start();
    let wires: Vec<Wire> = site.addresses().into_iter().map(|address| Wire::to(address).unwrap()).collect();
    let addresses: Vec<_> = wires.iter().map(|wire| wire.address).collect();
    let keeper = Keeper::builder().ttl(20.secs()).request_timeout(300.millis());
    let keeper = keeper.connect_unfenced(&site.url_at(&addresses)).await.unwrap();
    let (direct, fenced) = connect(&site.url()).await;
    let can = keeper.capabilities();
    // The session is open, and it outlives all of this; in PostgreSQL it is the connection, which does not.
    let anchor = soon(keeper.lock("anchor").acquire()).await.unwrap();
    let outlives = can.engine != "postgres";
    let mut last = Token(0);
    for round in 0..16_u64 {
        let lock = if round % 2 == 1 && can.shared { keeper.lock("g").shared() } else { keeper.lock("g") };
        let task = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_micros(round * 150)).await;
        // In half of the rounds the requests still arrive.
        wires.iter().for_each(if round % 4 < 2 { Wire::cut } else { Wire::lose_answers });
        tokio::time::sleep(20.millis()).await;
        task.abort();
        // Granted or not: what it may have got is dropped.
        drop(task.await);
        wires.iter().for_each(Wire::heal);
        match &fenced {
            Some(fenced) => {
                let next = soon(fenced.lock("g").ttl(20.secs()).acquire()).await.unwrap();
                let token = next.token();
                assert!(token > last, "{token} after {last}: what is given up in doubt takes no token back");
                last = token;
                next.release().await.unwrap();
            }
            None => {
                soon(direct.lock("g").ttl(20.secs()).acquire()).await.unwrap().release().await.unwrap();
            }
        }
        assert!(!outlives || anchor.state() != GuardState::Lost, "the session was to live through this");
    }
    if outlives {
        soon(anchor.release()).await.unwrap();
    } else {
        drop(anchor);
    }
    soon(keeper.close()).await.unwrap();
    soon(direct.close()).await.unwrap();
    drop((keeper, direct, fenced));
    assert_eq!(until_nothing_is_left(&site), Vec::<String>::new());
}

/// How long Redis keeps what is held there by one holder.
fn time_left(redis: &Redis, key: &str) -> Duration {
    if redis.command(&["TYPE", key]) != "hash" {
        return Duration::from_millis(redis.command(&["PTTL", key]).parse().unwrap_or(0));
    }
    // Each holder of a hash has an end of its own: token, since, end, and who it is.
    let entries = redis.command(&["HVALS", key]);
    let end = entries.lines().find_map(|entry| entry.split(' ').nth(2)?.parse::<u64>().ok()).unwrap_or(0);
    let time = redis.command(&["TIME"]);
    let (seconds, micros) = time.split_once('\n').unwrap();
    let now = seconds.parse::<u64>().unwrap() * 1_000 + micros.parse::<u64>().unwrap() / 1_000;
    Duration::from_millis(end.saturating_sub(now))
}

async fn until_time_left(redis: &Redis, key: &str, is_so: impl Fn(Duration) -> bool) {
    let until = Instant::now() + 30.secs();
    while !is_so(time_left(redis, key)) {
        assert!(Instant::now() < until, "{key} has {:?} left", time_left(redis, key));
        tokio::time::sleep(10.millis()).await;
    }
}

/// A guard counts its time from the request that was answered. If that was a retry, the lock was taken before it.
#[tokio::test]
async fn a_retry_has_as_much_time_in_redis_as_its_guard_counts_on() {
    let redis = Redis::start();
    let ttl = 10.secs();
    for name in ["alone", "shared", "counted"] {
        let wire = Wire::to(redis.address).unwrap();
        let keeper = Keeper::builder().request_timeout(200.millis()).connect_timeout(30.secs());
        let keeper = keeper.connect_unfenced(&redis.url_at(&[wire.address])).await.unwrap();
        let lock = match name {
            "shared" => keeper.lock(name).shared(),
            "counted" => keeper.lock(name).capacity(3),
            _ => keeper.lock(name),
        };
        // Redis knows the scripts from now on: an answer that it does not would be lost as well.
        keeper.lock("before").acquire().await.unwrap().release().await.unwrap();
        wire.lose_answers();
        let asking = tokio::spawn(async move { lock.ttl(ttl).wait(60.secs()).acquire().await.unwrap() });
        let key = format!("lockkeeper:lock:{name}");
        until_time_left(&redis, &key, |left| !left.is_zero()).await;
        wire.cut();
        until_time_left(&redis, &key, |left| left < ttl - 1.secs()).await;
        wire.heal();
        let guard = soon(asking).await.unwrap();
        let (counted_on, asked) = (guard.remaining(), Instant::now());
        let left = time_left(&redis, &key) + asked.elapsed();
        assert!(
            left >= counted_on,
            "{name}: Redis keeps it for {left:?}, the guard counts on {counted_on:?}"
        );
        guard.release().await.unwrap();
    }
}
