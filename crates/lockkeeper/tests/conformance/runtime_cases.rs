//! What the shared runtime of the engines promises, with each server.

use std::time::Duration;

use lockkeeper::prelude::*;

use crate::cases::soon;
use crate::child::connect;
use crate::servers::Site;

/// Threads of a thread pool, finalizers, callbacks from C: none of them has a runtime.
pub(crate) async fn a_guard_dropped_on_a_thread_without_a_runtime_is_released<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    // Nobody waits that long for the lease to expire.
    let guard = soon(keeper.lock("dropped").ttl(600.secs()).acquire()).await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("dropped").ttl(600.secs()).acquire().await });
    std::thread::spawn(move || drop(guard)).join().unwrap();
    soon(waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// The future of an acquire is dropped there too: what it may have been granted is given back.
pub(crate) async fn an_acquire_dropped_on_a_thread_without_a_runtime_leaves_nothing_behind<S: Site>() {
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

/// A wait on the server takes most of a time to live: the guard counts from a renewal after it.
pub(crate) async fn a_guard_that_was_waited_for_has_a_fresh_lease<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let ttl = S::TTL.max(Duration::from_secs(12));
    let guard = soon(keeper.lock("waited").ttl(600.secs()).acquire()).await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("waited").ttl(ttl).acquire().await });
    // The wait itself is what is tested: it has to last.
    tokio::time::sleep(ttl * 3 / 4).await;
    guard.release().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert!(guard.remaining() > ttl / 2, "only {:?} of {ttl:?} are left after the wait", guard.remaining());
    guard.check().unwrap();
    guard.release().await.unwrap();
}
