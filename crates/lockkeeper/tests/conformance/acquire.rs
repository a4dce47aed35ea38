//! Acquiring a lock: without waiting, with a wait, and dropped before it is complete.

use std::future::Future;
use std::time::{Duration, Instant};

use lockkeeper::GuardState;
use lockkeeper::prelude::*;

use crate::servers::Site;
use crate::support::{assert_free, assert_nothing_left, soon, unfenced};

pub(crate) async fn lock_can_be_tried_waited_for_and_released<S: Site>() {
    let site = S::start();
    let (keeper, other) = (unfenced(&site).await, unfenced(&site).await);
    let lock = "orders/4472";
    let guard = soon(keeper.lock(lock).ttl(10.secs()).wait(5.secs()).acquire()).await.unwrap();
    assert_eq!((guard.lock_name(), guard.state()), (lock, GuardState::Held));
    assert!(guard.remaining() > 5.secs() && guard.remaining() < 10.secs(), "{:?}", guard.remaining());
    // The lock excludes other keepers, and other tasks of the same keeper.
    for contender in [&other, &keeper] {
        assert_eq!(soon(contender.lock(lock).no_wait().acquire()).await.unwrap_err().code(), "busy");
        assert!(soon(contender.lock(lock).try_acquire()).await.unwrap().is_none());
        let started = Instant::now();
        let error = soon(contender.lock(lock).wait(100.millis()).acquire()).await.unwrap_err();
        assert_eq!(error.code(), "timeout");
        assert!(started.elapsed() >= 100.millis());
    }
    let other_lock = other.lock(lock);
    let other_waiter = tokio::spawn(async move { other_lock.wait(20.secs()).acquire().await.unwrap() });
    let same_lock = keeper.lock(lock);
    let same_waiter = tokio::spawn(async move { same_lock.wait(20.secs()).acquire().await.unwrap() });
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    let (first, second) = (soon(other_waiter), soon(same_waiter));
    // The waiters get the lock one after the other, in either order. A dropped guard is released.
    futures_util::pin_mut!(first, second);
    match futures_util::future::select(first, second).await {
        futures_util::future::Either::Left((guard, next)) => {
            drop(guard);
            drop(next.await);
        }
        futures_util::future::Either::Right((guard, next)) => {
            drop(guard);
            drop(next.await);
        }
    }
    assert_free(&keeper, lock).await;
    keeper.close().await.unwrap();
    assert_eq!(keeper.lock(lock).acquire().await.unwrap_err().code(), "closed");
}

pub(crate) async fn acquire_dropped_at_any_await_leaves_nothing_behind<S: Site>() {
    let site = S::start();
    let (keeper, other) = (unfenced(&site).await, unfenced(&site).await);
    let mut polls = 0;
    loop {
        polls += 1;
        let lock = format!("dropped/{}", polls % 3);
        let request = keeper.lock(&*lock).ttl(30.secs()).wait(10.secs());
        let mut acquire = Box::pin(request.acquire());
        let mut is_done = false;
        for _ in 0..polls {
            let step = std::future::poll_fn(|context| std::task::Poll::Ready(acquire.as_mut().poll(context)));
            if step.await.is_ready() {
                is_done = true;
                break;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        drop(acquire);
        assert_free(&other, &lock).await;
        if is_done || polls > 200 {
            break;
        }
    }
    // An acquire that is dropped in the queue does not block the next one.
    let guard = soon(keeper.lock("queue").acquire()).await.unwrap();
    for wait in [0, 1, 3, 10, 30, 100] {
        let waiting = other.lock("queue").ttl(30.secs());
        assert!(tokio::time::timeout(wait.millis(), waiting.acquire()).await.is_err());
    }
    guard.release().await.unwrap();
    assert_free(&keeper, "queue").await;
    keeper.close().await.unwrap();
    other.close().await.unwrap();
    assert_nothing_left(&site);
}
