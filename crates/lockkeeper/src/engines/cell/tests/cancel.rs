//! Drops every future at every await: no stray holder and no stray waiter may remain.

#![allow(clippy::async_yields_async, reason = "the closures return the future that is to be dropped")]

use std::pin::Pin;
use std::task::{Context, Poll};

use super::*;
use crate::backoff;

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Boxed {
    Box::pin(async move { drop(future.await) })
}

/// Polls a future a limited number of times and then drops it, unless it has finished before.
struct Dropped {
    future: Option<Boxed>,
    polls_left: usize,
}

impl Future for Dropped {
    /// Whether it has finished.
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        if self.polls_left > 0
            && let Some(future) = &mut self.future
        {
            let poll = future.as_mut().poll(context);
            self.polls_left -= 1;
            match poll {
                Poll::Ready(()) => return Poll::Ready(true),
                Poll::Pending if self.polls_left > 0 => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        self.future = None;
        Poll::Ready(false)
    }
}

/// Polls a future once; `None` if it is pending.
async fn poll_once<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Drops `make()` after 0, 1, 2, ... polls until it finishes; runs `check` each time.
async fn at_every_await(name: &str, mut make: impl AsyncFnMut() -> Boxed, mut check: impl AsyncFnMut()) {
    for polls in 0..100 {
        let future = make().await;
        let ended = soon(Dropped { future: Some(future), polls_left: polls }).await;
        check().await;
        if ended {
            assert!(polls > 1, "{name} never waited, so nothing was tested");
            return;
        }
    }
    panic!("{name} takes more than 100 polls");
}

/// Waits until these locks have no holders and no waiters, as seen by another keeper.
async fn all_free(watcher: &Keeper, locks: &[&str]) {
    for lock in locks {
        let mut tries = 0;
        loop {
            let state = watcher.who(lock).await.unwrap();
            if state.holders.is_empty() && state.waiting == 0 {
                break;
            }
            tries += 1;
            assert!(tries < 2_000, "a stray entry remains in {lock}: {state:?}");
            tokio::time::sleep(ms(1)).await;
        }
    }
}

#[tokio::test]
async fn dropped_acquire_of_a_free_lock_leaves_nothing() {
    let (peer, keeper) = connected(options()).await;
    let watcher = another(&peer, options()).await;
    let make = async || {
        let lock = keeper.lock("a");
        boxed(async move { lock.acquire().await.map(drop).unwrap() })
    };
    at_every_await("acquire", make, async || all_free(&watcher, &["a"]).await).await;
}

#[tokio::test]
async fn dropped_acquire_while_its_session_opens_leaves_nothing() {
    let peer = Peer::new();
    let watcher = another(&peer, options()).await;
    let make = async || {
        let lock = another(&peer, options()).await.lock("a");
        boxed(async move { lock.acquire().await.map(drop).unwrap() })
    };
    at_every_await("acquire", make, async || all_free(&watcher, &["a"]).await).await;
}

#[tokio::test]
async fn dropped_acquire_of_a_lock_that_becomes_free_leaves_nothing() {
    let (peer, keeper) = connected(options()).await;
    let holder = another(&peer, options()).await;
    for several in [false, true] {
        let make = async || {
            let guard = holder.lock("a").acquire().await.unwrap();
            let (peer, keeper) = (peer.clone(), keeper.clone());
            tokio::spawn(async move {
                // Release it as soon as there is a waiter, or after a while without one.
                for _ in 0..20 {
                    if peer.waiting("a") > 0 {
                        break;
                    }
                    tokio::time::sleep(ms(1)).await;
                }
                drop(guard);
            });
            boxed(async move {
                if several {
                    keeper.lock_all(["a", "b"]).acquire().await.map(drop).unwrap()
                } else {
                    keeper.lock("a").acquire().await.map(drop).unwrap()
                }
            })
        };
        at_every_await("acquire", make, async || all_free(&holder, &["a", "b"]).await).await;
    }
}

#[tokio::test]
async fn dropped_wait_leaves_the_queue_at_once() {
    let (peer, keeper) = connected(options()).await;
    let holder = another(&peer, options()).await;
    let guard = holder.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = keeper.lock("a");
        async move { lock.acquire().await }
    });
    until("it waits", || peer.waiting("a") == 1).await;
    waiter.abort();
    until("it has left", || peer.waiting("a") == 0).await;
    guard.check().unwrap();
    assert_eq!(peer.count("cancel"), 1);
}

#[tokio::test]
async fn dropped_release_run_calls_and_close_leave_nothing() {
    let (peer, keeper) = connected(options()).await;
    let watcher = another(&peer, options()).await;
    let make = async || boxed(keeper.lock("a").acquire().await.unwrap().release());
    at_every_await("release", make, async || all_free(&watcher, &["a"]).await).await;

    let make = async || {
        let lock = keeper.lock("a");
        boxed(async move { lock.run(|_| tokio::time::sleep(ms(3))).await })
    };
    at_every_await("run", make, async || all_free(&watcher, &["a"]).await).await;

    let make = async || {
        let keeper = keeper.clone();
        boxed(async move {
            keeper.value("k").put("v").await.unwrap();
            keeper.value("k").get().await.unwrap();
            keeper.who("a").await.unwrap();
            keeper.value("k").delete().await.unwrap();
        })
    };
    at_every_await("calls", make, async || all_free(&watcher, &["a"]).await).await;

    let make = async || {
        let keeper = another(&peer, options()).await;
        std::mem::forget(keeper.lock("a").acquire().await.unwrap());
        boxed(async move { keeper.close().await })
    };
    // A close that was never polled leaves the lock held; any other one completes.
    let mut first = true;
    at_every_await("close", make, async || {
        if std::mem::take(&mut first) {
            assert_eq!(watcher.force_release("a", "test").await.unwrap().holders, 1);
        }
        all_free(&watcher, &["a"]).await;
    })
    .await;
}

#[tokio::test]
async fn dropped_connect_leaves_no_session() {
    let peer = Peer::new();
    let watcher = another(&peer, options()).await;
    let make = async || {
        let peer = peer.clone();
        boxed(async move { another(&peer, options()).await.lock("a").acquire().await.map(drop).unwrap() })
    };
    at_every_await("connect and acquire", make, async || all_free(&watcher, &["a"]).await).await;
}

#[tokio::test]
async fn dropped_try_acquire_and_lock_all_run_leave_nothing() {
    let (peer, keeper) = connected(options()).await;
    let watcher = another(&peer, options()).await;
    let make = async || {
        let lock = keeper.lock("a");
        boxed(async move { lock.try_acquire().await.map(drop).unwrap() })
    };
    at_every_await("try_acquire", make, async || all_free(&watcher, &["a"]).await).await;

    let make = async || {
        let locks = keeper.lock_all(["a", "b"]);
        boxed(async move { locks.run(|_| tokio::time::sleep(ms(3))).await.unwrap() })
    };
    at_every_await("lock_all().run", make, async || all_free(&watcher, &["a", "b"]).await).await;
}

#[tokio::test]
async fn dropped_force_release_and_reads_leave_the_lock_usable() {
    let (peer, keeper) = connected(options()).await;
    let watcher = another(&peer, options()).await;
    let make = async || {
        std::mem::forget(watcher.lock("a").acquire().await.unwrap());
        let keeper = keeper.clone();
        boxed(async move { keeper.force_release("a", "test").await.unwrap() })
    };
    // It happened or not, but never halfway: the lock works for the next holder.
    let check = async || {
        watcher.force_release("a", "test").await.unwrap();
        all_free(&watcher, &["a"]).await;
        watcher.lock("a").acquire().await.unwrap().release().await.unwrap();
    };
    at_every_await("force_release", make, check).await;

    let token = lockkeeper_core::Token(1);
    let make = async || {
        let keeper = keeper.clone();
        boxed(async move {
            keeper.locks("", 10, None).await.unwrap();
            keeper.check_token("a", token).await.unwrap();
        })
    };
    let check = async || drop(soon(keeper.status()).await.unwrap());
    at_every_await("locks and check_token", make, check).await;
}

/// A dropped wait for an event leaves the event for the next wait.
#[tokio::test]
async fn dropped_wait_for_an_event_does_not_lose_it() {
    let (peer, keeper) = connected(options()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    let mut events = keeper.events();
    for polls in 1..5 {
        let mut next = Box::pin(events.next());
        for _ in 0..polls {
            assert!(poll_once(next.as_mut()).await.is_none(), "nothing has happened yet");
        }
    }
    peer.state().force("a");
    let lost = async {
        loop {
            let Some(event) = events.next().await else { panic!("the events have ended") };
            if matches!(event, crate::events::Event::GrantLost { .. }) {
                return;
            }
        }
    };
    soon(lost).await;
    drop(guard);
}

#[tokio::test]
async fn dropped_acquire_during_a_cut_leaves_nothing() {
    let (peer, keeper) = connected(options()).await;
    let watcher = another(&peer, options()).await;
    let make = async || {
        // The answer is lost, and the connection with it.
        peer.state().mute = true;
        let peer = peer.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ms(3)).await;
            peer.state().mute = false;
            peer.cut();
        });
        let lock = keeper.lock("a");
        boxed(async move { lock.acquire().await.map(drop).unwrap() })
    };
    let check = async || {
        until("the cut has happened", || !peer.state().mute).await;
        all_free(&watcher, &["a"]).await;
    };
    at_every_await("acquire", make, check).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_dropped_at_random_moments_leave_nothing() {
    let (peer, keeper) = connected(options()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let keeper = keeper.clone();
        tasks.spawn(async move {
            for _ in 0..50 {
                let lock = keeper.lock("a");
                let limit = Duration::from_micros(backoff::random(400));
                let _ = tokio::time::timeout(limit, async { lock.acquire().await.map(drop) }).await;
            }
        });
    }
    while let Some(result) = soon(tasks.join_next()).await {
        result.unwrap();
    }
    all_free(&keeper, &["a"]).await;
    drop(peer);
}
