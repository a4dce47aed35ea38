//! Repeated requests with the same ID.

use std::time::Instant;

use futures_util::future::join_all;
use lockkeeper::Fencing;
use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::Site;
use crate::support::soon;

/// Repeats a request a million times. If each needs a round trip, `at_once` are sent concurrently, as many as fit into a few
/// seconds: a million take too long in a debug build.
async fn repeat<F: Fencing>(lock: &Lock<F>, at_once: usize) -> Vec<Guard<F>> {
    const TIMES: usize = 1_000_000;
    const TIMES_MIN: usize = 10_000;
    let until = Instant::now() + 10.secs();
    let mut guards = vec![lock.acquire().await.unwrap()];
    while guards.len() < TIMES_MIN || (guards.len() < TIMES && (at_once == 1 || Instant::now() < until)) {
        match at_once {
            1 => guards.push(lock.acquire().await.unwrap()),
            _ => guards
                .extend(join_all((0..at_once).map(|_| lock.acquire())).await.into_iter().map(Result::unwrap)),
        }
    }
    println!("repeated {} times", guards.len());
    guards
}

pub(crate) async fn repeated_request_has_one_holder<S: Site>() {
    let site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let at_once = if S::ANSWERS_REPEATS_LOCALLY { 1 } else { 1_000 };
    if let Some(fenced) = &fenced {
        let lock = fenced.lock("repeated").ttl(60.secs()).request_id("once");
        let mut guards = repeat(&lock, at_once).await;
        assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
        assert!(soon(other.lock("repeated").try_acquire()).await.unwrap().is_none());
        guards.swap_remove(0).release().await.unwrap();
        let next = soon(other.lock("repeated").ttl(60.secs()).wait(10.secs()).acquire()).await.unwrap();
        // The other guards hold nothing, and dropping them does not affect the next holder.
        drop(guards);
        let last = lock.clone().request_id("another").no_wait().acquire().await;
        assert_eq!(last.unwrap_err().code(), "busy");
        next.release().await.unwrap();
    } else {
        let lock = keeper.lock("repeated").ttl(60.secs()).request_id("once");
        let mut guards = repeat(&lock, at_once).await;
        assert!(soon(other.lock("repeated").try_acquire()).await.unwrap().is_none());
        guards.swap_remove(0).release().await.unwrap();
        soon(other.lock("repeated").wait(10.secs()).acquire()).await.unwrap().release().await.unwrap();
    }
}
