//! Guarantees of the engines' shared runtime.

use std::time::Duration;

use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::Site;
use crate::support::soon;

/// Threads of a thread pool, finalizers and callbacks from C have no runtime.
pub(crate) async fn guard_dropped_on_a_thread_without_a_runtime_is_released<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    // The time to live is too long for the test to wait for the expiry.
    let guard = soon(keeper.lock("dropped").ttl(600.secs()).acquire()).await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("dropped").ttl(600.secs()).acquire().await });
    std::thread::spawn(move || drop(guard)).join().unwrap();
    soon(waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// The same for the future of an acquire.
pub(crate) async fn acquire_dropped_on_a_thread_without_a_runtime_leaves_nothing_behind<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    for polls in 0..6 {
        let lock = keeper.lock("left").ttl(600.secs());
        let mut acquire = Box::pin(async move { lock.acquire().await });
        for _ in 0..polls {
            if futures_util::poll!(&mut acquire).is_ready() {
                break;
            }
            tokio::time::sleep(1.millis()).await;
        }
        std::thread::spawn(move || drop(acquire)).join().unwrap();
        soon(other.lock("left").ttl(600.secs()).acquire()).await.unwrap().release().await.unwrap();
    }
}

/// A wait takes most of the time to live: the guard's deadline is counted from a renewal after the wait.
pub(crate) async fn guard_has_a_fresh_lease_after_a_long_wait<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let ttl = S::TTL.max(Duration::from_secs(12));
    let guard = soon(keeper.lock("waited").ttl(600.secs()).acquire()).await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("waited").ttl(ttl).acquire().await });
    // The length of the wait is part of the test.
    tokio::time::sleep(ttl * 3 / 4).await;
    guard.release().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert!(guard.remaining() > ttl / 2, "only {:?} of {ttl:?} are left after the wait", guard.remaining());
    guard.check().unwrap();
    guard.release().await.unwrap();
}
