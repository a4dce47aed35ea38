//! Lost answers: the client cannot know whether its request took effect.

use std::time::{Duration, Instant};

use lockkeeper::prelude::*;
use lockkeeper::{GuardState, Token};
use lockkeeper_testkit::wire::Wire;

use crate::child::connect;
use crate::servers::Site;
use crate::servers::redis::Redis;
use crate::support::{assert_nothing_left, soon};

/// An acquire that is dropped after its answer was lost does not take effect later.
pub(crate) async fn acquire_dropped_after_a_lost_answer_leaves_nothing_behind<S: Site>() {
    let site = S::start();
    let wires: Vec<Wire> = site.addresses().into_iter().map(|address| Wire::to(address).unwrap()).collect();
    let addresses: Vec<_> = wires.iter().map(|wire| wire.address).collect();
    let keeper = Keeper::builder().ttl(20.secs()).request_timeout(300.millis());
    let keeper = keeper.connect_unfenced(&site.url_at(&addresses)).await.unwrap();
    let (direct, fenced) = connect(&site.url()).await;
    let can = keeper.capabilities();
    // Keeps the session open, which survives the partitions. In PostgreSQL the session is the connection, which does not.
    let anchor = soon(keeper.lock("anchor").acquire()).await.unwrap();
    let session_survives = can.engine != "postgres";
    let mut last = Token(0);
    for round in 0..16_u64 {
        let lock = if round % 2 == 1 && can.shared { keeper.lock("g").shared() } else { keeper.lock("g") };
        let task = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_micros(round * 150)).await;
        // In half of the rounds, the requests still arrive.
        wires.iter().for_each(if round % 4 < 2 { Wire::cut } else { Wire::lose_answers });
        tokio::time::sleep(20.millis()).await;
        task.abort();
        // Granted or not: a guard is dropped.
        drop(task.await);
        wires.iter().for_each(Wire::heal);
        match &fenced {
            Some(fenced) => {
                let next = soon(fenced.lock("g").ttl(20.secs()).acquire()).await.unwrap();
                let token = next.token();
                assert!(token > last, "{token} after {last}: the tokens decrease");
                last = token;
                next.release().await.unwrap();
            }
            None => {
                soon(direct.lock("g").ttl(20.secs()).acquire()).await.unwrap().release().await.unwrap();
            }
        }
        assert!(!session_survives || anchor.state() != GuardState::Lost, "the session is lost");
    }
    if session_survives {
        soon(anchor.release()).await.unwrap();
    } else {
        drop(anchor);
    }
    soon(keeper.close()).await.unwrap();
    soon(direct.close()).await.unwrap();
    drop((keeper, direct, fenced));
    assert_nothing_left(&site);
}

/// The time until Redis expires the lease of the only holder.
fn time_left(redis: &Redis, key: &str) -> Duration {
    if redis.command(&["TYPE", key]) != "hash" {
        return Duration::from_millis(redis.command(&["PTTL", key]).parse().unwrap_or(0));
    }
    // A hash has an entry for each holder: token, since, expiry, permits and owner.
    let entries = redis.command(&["HVALS", key]);
    let end = entries.lines().find_map(|entry| entry.split(' ').nth(2)?.parse::<u64>().ok()).unwrap_or(0);
    let time = redis.command(&["TIME"]);
    let (seconds, micros) = time.split_once('\n').unwrap();
    let now = seconds.parse::<u64>().unwrap() * 1_000 + micros.parse::<u64>().unwrap() / 1_000;
    Duration::from_millis(end.saturating_sub(now))
}

async fn until_time_left(redis: &Redis, key: &str, condition: impl Fn(Duration) -> bool) {
    let until = Instant::now() + 30.secs();
    while !condition(time_left(redis, key)) {
        assert!(Instant::now() < until, "{key} has {:?} left", time_left(redis, key));
        tokio::time::sleep(10.millis()).await;
    }
}

/// A guard counts its deadline from the request that was answered. If this was a retry, the lease in Redis is older.
#[tokio::test]
async fn retry_after_a_lost_answer_renews_the_lease_in_redis() {
    let redis = Redis::start();
    let ttl = 10.secs();
    for name in ["exclusive", "shared", "counted"] {
        let wire = Wire::to(redis.address).unwrap();
        let keeper = Keeper::builder().request_timeout(200.millis()).connect_timeout(30.secs());
        let keeper = keeper.connect_unfenced(&redis.url_at(&[wire.address])).await.unwrap();
        let lock = match name {
            "shared" => keeper.lock(name).shared(),
            "counted" => keeper.lock(name).capacity(3),
            _ => keeper.lock(name),
        };
        // Loads the scripts. Otherwise, the answer that a script is missing would be lost too.
        keeper.lock("before").acquire().await.unwrap().release().await.unwrap();
        wire.lose_answers();
        let acquire = tokio::spawn(async move { lock.ttl(ttl).wait(60.secs()).acquire().await.unwrap() });
        let key = format!("lockkeeper:lock:{name}");
        until_time_left(&redis, &key, |left| !left.is_zero()).await;
        wire.cut();
        until_time_left(&redis, &key, |left| left < ttl - 1.secs()).await;
        wire.heal();
        let guard = soon(acquire).await.unwrap();
        let (remaining, sent) = (guard.remaining(), Instant::now());
        let left = time_left(&redis, &key) + sent.elapsed();
        assert!(left >= remaining, "{name}: {left:?} are left in Redis, the guard has {remaining:?}");
        guard.release().await.unwrap();
    }
}
