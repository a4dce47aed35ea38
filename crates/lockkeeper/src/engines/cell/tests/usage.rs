//! Ordinary use, without faults.

use lockkeeper_core::Sequencer;

use super::*;
use crate::error::{Error, Loss};
use crate::mode::Mode;

#[tokio::test]
async fn tokens_increase_with_each_grant() {
    let (peer, keeper) = connected(options()).await;
    let first = soon(keeper.lock("a").acquire()).await.unwrap();
    assert_eq!(first.lock_name(), "a");
    assert!(first.remaining() > ms(9_000));
    let sequencer: Sequencer = first.sequencer().parse().unwrap();
    assert_eq!((sequencer.lock.as_str(), sequencer.token), ("a", first.token()));
    first.check().unwrap();
    let token = first.token();
    first.release().await.unwrap();
    let second = soon(keeper.lock("a").acquire()).await.unwrap();
    assert!(second.token() > token);
    assert_eq!(peer.count("open"), 1, "one session for all locks");
    assert_eq!(peer.count("release a true"), 1, "the request is forgotten with the release");
    let id =
        peer.state().seen.iter().find_map(|seen| seen.strip_prefix("acquire a ").map(str::to_owned)).unwrap();
    assert!(!id.is_empty() && id.len() <= 23, "{id}");
}

#[tokio::test]
async fn two_tasks_of_one_keeper_exclude_each_other() {
    let (_peer, keeper) = connected(options()).await;
    let _guard = keeper.lock("a").acquire().await.unwrap();
    assert_eq!(keeper.lock("a").no_wait().acquire().await.unwrap_err().code(), "busy");
    assert!(keeper.lock("a").try_acquire().await.unwrap().is_none());
    let error = soon(keeper.lock("a").wait(ms(30)).acquire()).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { lock } if lock == "a"), "{error:?}");
}

#[tokio::test]
async fn dropped_guard_is_released_in_the_background() {
    let (peer, keeper) = connected(options()).await;
    drop(keeper.lock("a").acquire().await.unwrap());
    until("the lock is free", || peer.holders("a") == 0).await;
    let guard = soon(keeper.lock("a").acquire()).await.unwrap();
    let waiter = tokio::spawn({
        let lock = keeper.lock("a");
        async move { lock.acquire().await }
    });
    until("it waits", || peer.waiting("a") == 1).await;
    drop(guard);
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn guard_can_be_dropped_outside_the_runtime() {
    let (peer, keeper) = connected(options()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    until("the lock is free", || peer.holders("a") == 0).await;
}

#[tokio::test]
async fn shared_and_counted_locks_admit_several_holders() {
    let (_peer, keeper) = connected(options()).await;
    let one = keeper.lock("s").shared().acquire().await.unwrap();
    let two = keeper.lock("s").mode(Mode::Shared).no_wait().acquire().await.unwrap();
    assert_eq!((one.mode(), two.mode()), (Mode::Shared, Mode::Shared));
    assert_eq!(keeper.lock("s").no_wait().acquire().await.unwrap_err().code(), "busy");

    let big = keeper.lock("c").capacity(3).permits(2).acquire().await.unwrap();
    let small = keeper.lock("c").capacity(3).permits(1).no_wait().acquire().await.unwrap();
    assert_eq!(keeper.lock("c").capacity(3).permits(1).no_wait().acquire().await.unwrap_err().code(), "busy");
    drop((big, small));
}

#[tokio::test]
async fn several_locks_are_acquired_and_released_together() {
    let (peer, keeper) = connected(options()).await;
    let guard = soon(keeper.lock_all(["b", "a", "b"]).wait(ms(100)).acquire()).await.unwrap();
    assert_eq!(guard.lock_names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((peer.holders("a"), peer.holders("b")), (1, 1));
    assert_eq!(keeper.lock("b").no_wait().acquire().await.unwrap_err().code(), "busy");
    guard.release().await.unwrap();
    assert_eq!((peer.holders("a"), peer.holders("b")), (0, 0));
    drop(keeper.lock_all(["a", "b"]).acquire().await.unwrap());
    until("all are released", || peer.holders("a") + peer.holders("b") == 0).await;
    let none: [&str; 0] = [];
    assert_eq!(keeper.lock_all(none).acquire().await.unwrap_err().code(), "invalid");
}

#[tokio::test]
async fn each_ttl_has_a_session_and_all_are_renewed_together() {
    let (peer, keeper) = connected(options()).await;
    let _long = keeper.lock("a").acquire().await.unwrap();
    let _short = keeper.lock("b").ttl(ms(300)).acquire().await.unwrap();
    let _again = keeper.lock("c").ttl(ms(300)).acquire().await.unwrap();
    assert_eq!(keeper.session_ids().await.unwrap().len(), 2);
    assert_eq!(peer.count("open"), 2);
    until("both are renewed by one operation", || peer.count("keep-alive 2") >= 3).await;
    assert_eq!(peer.count("keep-alive 1"), 0);
}

#[tokio::test]
async fn renewed_lock_outlives_its_ttl() {
    const TTL: Duration = ms(1_000);
    let (peer, keeper) = connected(Options { ttl: TTL, ..options() }).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    let started = std::time::Instant::now();
    while started.elapsed() < 4 * TTL {
        tokio::time::sleep(ms(20)).await;
        guard.check().unwrap();
    }
    assert_eq!(peer.holders("a"), 1);
    let renewals = peer.count("keep-alive") as u128;
    // One for each third of the TTL, and fewer on a busy machine.
    let most = 3 * started.elapsed().as_millis() / TTL.as_millis() + 1;
    assert!((4..=most).contains(&renewals), "{renewals} renewals, at most {most} are needed");
}

#[tokio::test]
async fn invalid_ttl_fails_all_its_acquires() {
    let (_peer, keeper) = connected(options()).await;
    let lock = keeper.lock("a").ttl(ms(1));
    let (one, two) = tokio::join!(lock.acquire(), lock.acquire());
    assert_eq!((one.unwrap_err().code(), two.unwrap_err().code()), ("invalid", "invalid"));
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn value_writes_check_fence_and_version() {
    let (_peer, keeper) = connected(options()).await;
    assert_eq!(keeper.value("k").get().await.unwrap(), None);
    let old = keeper.lock("a").acquire().await.unwrap();
    let version = keeper.value("k").fence(&old).if_version(0).put("one").await.unwrap();
    let value = keeper.value("k").get().await.unwrap().unwrap();
    assert_eq!(
        (value.bytes.as_slice(), value.version, value.token),
        (&b"one"[..], version, Some(old.token()))
    );
    assert_eq!(
        keeper.value("k").if_version(99).put("x").await.unwrap_err(),
        Error::VersionMismatch { version }
    );

    let stale = (old.lock_name().to_owned(), old.token());
    old.release().await.unwrap();
    let new = keeper.lock("a").acquire().await.unwrap();
    let error = keeper.value("k").fence_with(stale.0, stale.1).put("late").await.unwrap_err();
    assert_eq!(error, Error::StaleToken { last_token: new.token() });
    keeper.value("k").fence(&new).delete().await.unwrap();
    assert_eq!(keeper.value("k").get().await.unwrap(), None);
}

#[tokio::test]
async fn operators_can_inspect_and_force_release() {
    let (_peer, keeper) = connected(options()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    let state = keeper.who("a").await.unwrap();
    assert_eq!((state.holders[0].token, state.holders[0].owner.as_str()), (guard.token().0, "test"));
    let own = keeper.session_ids().await.unwrap();
    assert!(own.len() == 1 && own[0].starts_with(&state.holders[0].session), "{own:?} {state:?}");
    assert!(keeper.check_token("a", guard.token()).await.unwrap().valid);
    assert_eq!(keeper.status().await.unwrap().node_id, 7);

    let mut events = keeper.events();
    assert_eq!(keeper.force_release("a", "stuck").await.unwrap().holders, 1);
    assert_eq!(soon(guard.lost()).await, Loss::TakenAway);
    assert_eq!(guard.check().unwrap_err().code(), "lost");
    assert!(matches!(soon(events.next()).await, Some(crate::Event::GrantLost { lock, .. }) if lock == "a"));
    // After the next acquire, the former holder's release has no effect.
    let next = keeper.lock("a").no_wait().acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().code(), "not_held");
    next.check().unwrap();
    assert_eq!(keeper.who("a").await.unwrap().holders[0].token, next.token().0);
}

#[tokio::test]
async fn close_releases_locks_and_ends_waits_guards_and_events() {
    let (peer, keeper) = connected(options()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = keeper.lock("a");
        async move { lock.acquire().await }
    });
    until("it waits", || peer.waiting("a") == 1).await;
    soon(keeper.close()).await.unwrap();
    assert_eq!((peer.holders("a"), peer.waiting("a"), peer.count("close")), (0, 0, 1));
    assert_eq!(soon(waiter).await.unwrap().unwrap_err(), Error::Closed);
    assert_eq!(soon(guard.lost()).await, Loss::Closed);
    assert_eq!(guard.release().await.unwrap_err(), Error::Closed);
    assert_eq!(keeper.lock("a").acquire().await.unwrap_err(), Error::Closed);
    assert_eq!(keeper.who("a").await.unwrap_err(), Error::Closed);
    soon(keeper.close()).await.unwrap();
    assert_eq!(soon(keeper.events().next()).await, None);
}

#[tokio::test]
async fn last_clone_and_guard_close_the_sessions() {
    let (peer, keeper) = connected(options()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    drop(keeper);
    tokio::time::sleep(ms(30)).await;
    guard.check().unwrap();
    drop(guard);
    until("the session is closed", || peer.count("close") == 1 && peer.holders("a") == 0).await;
}

#[tokio::test]
async fn queued_operations_share_a_frame() {
    let (peer, keeper) = connected(options()).await;
    drop(keeper.lock("warm").acquire().await.unwrap());
    until("it is free", || peer.holders("warm") == 0).await;
    let before = peer.state().frames;
    let acquires = (0..100).map(|index| {
        let lock = keeper.lock(format!("lock/{index}"));
        tokio::spawn(async move { lock.acquire().await })
    });
    let mut guards = Vec::new();
    for acquire in acquires.collect::<Vec<_>>() {
        guards.push(soon(acquire).await.unwrap().unwrap());
    }
    let frames = peer.state().frames - before;
    assert!(frames <= 5, "100 acquires in {frames} frames");
}

#[tokio::test]
async fn release_and_next_acquire_share_a_frame_in_order() {
    let (peer, keeper) = connected(options()).await;
    let mut guard = keeper.lock("a").acquire().await.unwrap();
    let before = peer.state().frames;
    for _ in 0..10 {
        drop(guard);
        guard = keeper.lock("a").acquire().await.unwrap();
        assert_eq!(peer.holders("a"), 1);
    }
    let frames = peer.state().frames - before;
    assert_eq!(frames, 10, "a release and the next acquire are one frame");
    let seen: Vec<_> = peer.state().seen.iter().rev().take(2).cloned().collect();
    assert!(seen[0].starts_with("acquire") && seen[1].starts_with("release"), "newest first: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_on_a_multi_thread_runtime_never_overlap() {
    let (peer, keeper) = connected(options()).await;
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (lock, inside) = (keeper.lock("a"), inside.clone());
        tasks.spawn(async move {
            for turn in 0..20 {
                let guard = lock.acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst), 1);
                if turn % 2 == 0 { guard.release().await.unwrap() } else { drop(guard) }
            }
        });
    }
    while let Some(result) = soon(tasks.join_next()).await {
        result.unwrap();
    }
    until("nothing is left", || peer.holders("a") == 0 && peer.waiting("a") == 0).await;
}
