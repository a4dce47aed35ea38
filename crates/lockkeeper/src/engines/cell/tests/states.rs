//! Guard states (held, jeopardy, lost), and how `run` reacts to them.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::error::{Error, Loss};
use crate::events::Event;
use crate::guard::GuardState::{Held, Jeopardy, Lost};

/// Sets a flag when it is dropped.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn guard_in_jeopardy_is_held_again_after_a_renewal() {
    let (peer, keeper) = connected(Options { ttl: ms(200), grace: ms(5_000), ..options() }).await;
    let mut events = keeper.events();
    let guard = keeper.lock("a").acquire().await.unwrap();
    let mut changes = guard.changes();
    assert_eq!(soon(changes.next()).await, Some(Held));
    {
        let mut state = peer.state();
        (state.frozen, state.no_renewals) = (true, true);
    }
    assert_eq!(soon(changes.next()).await, Some(Jeopardy));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.check().unwrap_err(), Error::Lost { lock: "a".into(), why: Loss::Deadline });
    assert_eq!(soon(guard.lost()).await, Loss::Deadline);
    assert!(matches!(soon(events.next()).await, Some(Event::Jeopardy { .. })));
    peer.state().no_renewals = false;
    assert_eq!(soon(changes.next()).await, Some(Held));
    guard.check().unwrap();
    assert!(guard.remaining() > Duration::ZERO);
    loop {
        if let Event::Recovered { .. } = soon(events.next()).await.unwrap() {
            break;
        }
    }
}

/// In jeopardy the client cannot know who holds the lock: only the gate decides about a write.
#[tokio::test]
async fn only_the_gate_decides_about_a_write_in_jeopardy() {
    let (peer, keeper) = connected(Options { ttl: ms(200), grace: ms(60_000), ..options() }).await;
    let rival = another(&peer, Options { ttl: Duration::from_secs(60), ..options() }).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    let mut changes = guard.changes();
    {
        let mut state = peer.state();
        (state.frozen, state.no_renewals) = (true, true);
    }
    assert_eq!(soon(changes.next()).await, Some(Held));
    assert_eq!(soon(changes.next()).await, Some(Jeopardy));
    let value = keeper.value("k").fence(&guard);
    assert_eq!(soon(value.put("mine")).await, Ok(1), "no other client has held the lock");
    assert_eq!(guard.state(), Jeopardy);

    // Another client acquires the lock, but has not written yet.
    peer.state().force("a");
    let theirs = soon(rival.lock("a").acquire()).await.unwrap();
    let refused = soon(value.put("too late")).await.unwrap_err();
    assert_eq!(refused, Error::StaleToken { last_token: theirs.token() });
    assert_eq!(rival.value("k").get().await.unwrap().unwrap().bytes, b"mine");
}

#[test]
fn default_grace_is_45_seconds() {
    assert_eq!(Options::default().grace, Duration::from_secs(45));
}

#[tokio::test]
async fn guard_is_lost_after_the_grace_and_stays_lost() {
    let (peer, keeper) = connected(Options { ttl: ms(150), grace: ms(150), ..options() }).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    let mut changes = guard.changes();
    {
        let mut state = peer.state();
        (state.frozen, state.no_renewals) = (true, true);
    }
    assert_eq!(soon(changes.next()).await, Some(Held));
    assert_eq!(soon(changes.next()).await, Some(Jeopardy));
    assert_eq!(soon(changes.next()).await, Some(Lost));
    assert_eq!(soon(changes.next()).await, None);
    assert_eq!(guard.state(), Lost);
    let renewals = peer.count("keep-alive");
    peer.state().no_renewals = false;
    until("it is renewed", || peer.count("keep-alive") > renewals + 2).await;
    assert_eq!(guard.state(), Lost);
    assert_eq!(guard.check().unwrap_err(), Error::Lost { lock: "a".into(), why: Loss::GraceOver });
    until("the lock of the lost guard is released", || peer.holders("a") == 0).await;
}

#[tokio::test]
async fn run_returns_the_output_and_releases_the_lock() {
    let (peer, keeper) = connected(options()).await;
    let lock = keeper.lock("a");
    let output = lock.run(|lease| async move {
        lease.check()?;
        assert!(lease.remaining() > ms(9_000));
        assert_eq!((lease.lock_name(), lease.state()), ("a", Held));
        Ok::<_, Error>(lease.token())
    });
    let token = soon(output).await.unwrap().unwrap();
    assert_eq!(token, peer.state().table.last_token());
    assert_eq!(peer.holders("a"), 0);
}

#[tokio::test]
async fn run_drops_the_work_before_another_client_holds_the_lock() {
    for _ in 0..5 {
        let (peer, keeper) = connected(Options { ttl: ms(200), ..options() }).await;
        let rival = another(&peer, Options { ttl: Duration::from_secs(60), ..options() }).await;
        rival.lock("warm").acquire().await.unwrap().release().await.unwrap();
        let dropped = Arc::new(AtomicBool::new(false));
        let flag = DropFlag(dropped.clone());
        let run = tokio::spawn(async move {
            keeper
                .lock("a")
                .run(|_lease| async move {
                    let _flag = flag;
                    std::future::pending::<()>().await;
                })
                .await
        });
        until("the work has begun", || peer.holders("a") == 1).await;
        let rivals = tokio::spawn(async move { rival.lock("a").acquire().await });
        until("the rival waits", || peer.waiting("a") == 1).await;
        // The holder is cut off in both directions.
        peer.state().no_renewals = true;
        let guard = soon(rivals).await.unwrap().unwrap();
        assert!(dropped.load(Ordering::SeqCst), "the work went on while the rival held the lock");
        assert!(matches!(soon(run).await.unwrap(), Err(Error::Lost { .. })));
        drop(guard);
    }
}

#[tokio::test]
async fn run_with_a_grace_continues_in_jeopardy() {
    let (peer, keeper) = connected(Options { ttl: ms(150), ..options() }).await;
    let lock = keeper.lock("a").grace(ms(5_000));
    let run = tokio::spawn(async move {
        lock.run(|lease| async move {
            while lease.state() == Held {
                tokio::time::sleep(ms(2)).await;
            }
            // `check` fails even in the grace.
            assert_eq!((lease.check().is_err(), lease.remaining()), (true, Duration::ZERO));
            while lease.state() == Jeopardy {
                tokio::time::sleep(ms(2)).await;
            }
            lease.state()
        })
        .await
    });
    until("the work has begun", || peer.holders("a") == 1).await;
    {
        let mut state = peer.state();
        (state.frozen, state.no_renewals) = (true, true);
    }
    tokio::time::sleep(ms(300)).await;
    peer.state().no_renewals = false;
    assert_eq!(soon(run).await.unwrap().unwrap(), Held);
}

#[tokio::test]
async fn run_with_a_grace_ends_with_the_grace_or_a_known_loss() {
    let (peer, keeper) = connected(Options { ttl: ms(150), ..options() }).await;
    let lock = keeper.lock("a").grace(ms(200));
    let run = tokio::spawn(async move { lock.run(|_| std::future::pending::<()>()).await });
    until("the work has begun", || peer.holders("a") == 1).await;
    {
        let mut state = peer.state();
        (state.frozen, state.no_renewals) = (true, true);
    }
    let started = std::time::Instant::now();
    assert_eq!(soon(run).await.unwrap().unwrap_err(), Error::Lost { lock: "a".into(), why: Loss::GraceOver });
    assert!(started.elapsed() > ms(200), "{:?}", started.elapsed());

    let (peer, keeper) = connected(options()).await;
    let lock = keeper.lock("a").grace(Duration::from_secs(60));
    let run = tokio::spawn(async move { lock.run(|_| std::future::pending::<()>()).await });
    until("the work has begun", || peer.holders("a") == 1).await;
    peer.state().force("a");
    assert_eq!(soon(run).await.unwrap().unwrap_err(), Error::Lost { lock: "a".into(), why: Loss::TakenAway });
}

#[tokio::test]
async fn grant_with_an_expired_lease_is_not_returned() {
    let (peer, keeper) = connected(Options { ttl: ms(200), ..options() }).await;
    let holder = another(&peer, Options { ttl: Duration::from_secs(60), ..options() }).await;
    let guard = holder.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { keeper.lock("a").acquire().await });
    until("it waits", || peer.waiting("a") == 1).await;
    {
        let mut state = peer.state();
        (state.frozen, state.no_renewals) = (true, true);
    }
    tokio::time::sleep(ms(250)).await;
    guard.release().await.unwrap();
    until("it is granted", || peer.holders("a") == 1 && peer.waiting("a") == 0).await;
    tokio::time::sleep(ms(30)).await;
    assert!(!waiter.is_finished(), "it must not claim to hold the lock");
    peer.state().no_renewals = false;
    let guard = soon(waiter).await.unwrap().unwrap();
    assert_eq!(guard.state(), Held);
}

#[test]
fn guards_and_futures_are_send_and_sync() {
    fn both<T: Send + Sync>() {}
    fn send<T: Send>(_: &T) {}
    both::<crate::Guard>();
    both::<Keeper>();
    both::<crate::Lease>();
    fn futures(keeper: &Keeper) {
        let lock = keeper.lock("a");
        send(&lock.acquire());
        send(&lock.run(|_| async {}));
        send(&keeper.close());
    }
    let _ = futures;
}
