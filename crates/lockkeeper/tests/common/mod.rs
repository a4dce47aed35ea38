//! The checks for engines with all lock semantics, run against a real lock table.
#![allow(dead_code, clippy::unwrap_used)]

use std::future::Future;
use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{Error, GuardState, Loss, Unfenced};

/// Awaits a future with a timeout.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("timed out")
}

/// Waits until a lock has this number of holders and waiters.
pub(crate) async fn until(keeper: &Keeper, lock: &str, holders: usize, waiting: u32) {
    let waited = async {
        loop {
            let state = keeper.who(lock).await.unwrap();
            if (state.holders.len(), state.waiting) == (holders, waiting) {
                return;
            }
            tokio::time::sleep(1.millis()).await;
        }
    };
    if tokio::time::timeout(10.secs(), waited).await.is_err() {
        panic!("{lock} should have {holders} holders and {waiting} waiting: {:?}", keeper.who(lock).await);
    }
}

/// Runs all checks. Names begin with `p`, so that concurrent runs do not interfere.
pub(crate) async fn check_engine(url: &str, p: &str) {
    let keeper = Keeper::builder().owner("first").connect(url).await.unwrap();
    let other = Keeper::builder().owner("second").connect(url).await.unwrap();
    exclusion(&keeper, &other, &format!("{p}/exclusion")).await;
    queue(&keeper, &other, &format!("{p}/queue")).await;
    modes(&keeper, &other, &format!("{p}/modes")).await;
    several(&keeper, &other, p).await;
    values(&keeper, &other, p).await;
    operators(&keeper, &other, &format!("{p}/operators")).await;
    sessions(&keeper, url, &format!("{p}/sessions")).await;
    running(&keeper, &format!("{p}/running")).await;
    let unfenced: Keeper<Unfenced> = Keeper::connect_unfenced(url).await.unwrap();
    unfenced.fenced().unwrap();
}

async fn exclusion(keeper: &Keeper, other: &Keeper, lock: &str) {
    let guard = soon(keeper.lock(lock).ttl(10.secs()).wait(5.secs()).acquire()).await.unwrap();
    assert_eq!((guard.lock_name(), guard.state(), guard.mode()), (lock, GuardState::Held, Mode::Exclusive));
    assert!(guard.remaining() > 9.secs() && guard.remaining() < 10.secs());
    guard.check().unwrap();
    assert_eq!(other.lock(lock).no_wait().acquire().await.unwrap_err().code(), "busy");
    assert_eq!(keeper.lock(lock).no_wait().acquire().await.unwrap_err().code(), "busy");
    assert!(other.lock(lock).try_acquire().await.unwrap().is_none());
    let started = std::time::Instant::now();
    assert_eq!(soon(other.lock(lock).wait(50.millis()).acquire()).await.unwrap_err().code(), "timeout");
    assert!(started.elapsed() >= 50.millis());
    until(keeper, lock, 1, 0).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = soon(other.lock(lock).acquire()).await.unwrap();
    assert!(next.token() > token);
    drop(next);
    until(keeper, lock, 0, 0).await;
}

async fn queue(keeper: &Keeper, other: &Keeper, lock: &str) {
    let guard = keeper.lock(lock).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for index in 0..3 {
        let lock = if index % 2 == 0 { other.lock(lock) } else { keeper.lock(lock) };
        waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        until(keeper, guard.lock_name(), 1, index + 1).await;
    }
    // The second waiter leaves the queue.
    waiters[1].abort();
    until(keeper, lock, 1, 2).await;
    let mut token = guard.token();
    drop(guard);
    for index in [0, 2] {
        let guard = soon(&mut waiters[index]).await.unwrap();
        assert!(guard.token() > token);
        token = guard.token();
        guard.release().await.unwrap();
    }
    until(keeper, lock, 0, 0).await;
}

async fn modes(keeper: &Keeper, other: &Keeper, lock: &str) {
    let readers = (
        keeper.lock(lock).shared().acquire().await.unwrap(),
        other.lock(lock).shared().acquire().await.unwrap(),
    );
    assert_eq!(readers.1.mode(), Mode::Shared);
    assert_eq!(other.lock(lock).no_wait().acquire().await.unwrap_err().code(), "busy");
    drop(readers);
    until(keeper, lock, 0, 0).await;

    let counted = |keeper: &Keeper| keeper.lock(lock).capacity(3).no_wait();
    let one = counted(keeper).acquire().await.unwrap();
    let two = counted(other).permits(2).acquire().await.unwrap();
    assert_eq!(counted(other).acquire().await.unwrap_err().code(), "busy");
    assert_eq!(other.lock(lock).capacity(5).no_wait().acquire().await.unwrap_err().code(), "invalid");
    one.release().await.unwrap();
    counted(other).acquire().await.unwrap().release().await.unwrap();
    two.release().await.unwrap();
}

async fn several(keeper: &Keeper, other: &Keeper, p: &str) {
    let (a, b) = (format!("{p}/several/a"), format!("{p}/several/b"));
    let both = soon(keeper.lock_all([&a, &b]).wait(1.secs()).acquire()).await.unwrap();
    assert_eq!(both.lock_names().collect::<Vec<_>>(), [&a, &b]);
    assert_eq!(other.lock(&*b).no_wait().acquire().await.unwrap_err().code(), "busy");
    both.release().await.unwrap();
    let part = other.lock(&*b).acquire().await.unwrap();
    assert_eq!(keeper.lock_all([&b, &a]).no_wait().acquire().await.unwrap_err().code(), "busy");
    until(keeper, &a, 0, 0).await;
    drop(part);
    drop(soon(keeper.lock_all([&b, &a]).acquire()).await.unwrap());
    until(keeper, &a, 0, 0).await;
    until(keeper, &b, 0, 0).await;
}

async fn values(keeper: &Keeper, other: &Keeper, p: &str) {
    let (key, lock) = (format!("{p}/value"), format!("{p}/value/lock"));
    assert_eq!(keeper.value(&key).get().await.unwrap(), None);
    let old = keeper.lock(&*lock).acquire().await.unwrap();
    let version = keeper.value(&key).fence(&old).if_version(0).put("one").await.unwrap();
    assert_eq!(
        keeper.value(&key).if_version(0).put("x").await.unwrap_err(),
        Error::VersionMismatch { version }
    );
    let token = old.token();
    old.release().await.unwrap();
    // A stale holder is refused even before the new one has written.
    let new = other.lock(&*lock).acquire().await.unwrap();
    let error = keeper.value(&key).fence_with(&*lock, token).put("late").await.unwrap_err();
    assert_eq!(error, Error::StaleToken { last_token: new.token() });
    other.value(&key).fence(&new).put("two").await.unwrap();
    let value = keeper.value(&key).get().await.unwrap().unwrap();
    assert_eq!((value.bytes.as_slice(), value.token), (&b"two"[..], Some(new.token())));
    other.value(&key).fence(&new).delete().await.unwrap();
    assert_eq!(keeper.value(&key).get().await.unwrap(), None);
    assert_eq!(keeper.value(&key).put(vec![0; 1 << 20]).await.unwrap_err().code(), "too_large");
    // Many large values at once exceed one frame.
    let puts = (0..40).map(|index| {
        let value = keeper.value(format!("{key}/{index}"));
        tokio::spawn(async move {
            value.put(vec![7; 60_000]).await.unwrap();
            value.delete().await.unwrap();
        })
    });
    for put in puts.collect::<Vec<_>>() {
        soon(put).await.unwrap();
    }
}

async fn operators(keeper: &Keeper, other: &Keeper, lock: &str) {
    let guard = keeper.lock(lock).acquire().await.unwrap();
    let state = other.who(lock).await.unwrap();
    assert_eq!((state.holders[0].owner.as_str(), state.holders[0].token), ("first", guard.token().0));
    assert_eq!(state.last_token, guard.token().0);
    let page = other.locks(lock, 10, None).await.unwrap();
    assert_eq!((page.locks.len(), page.locks[0].lock.as_str(), page.more), (1, lock, false));
    assert!(other.locks(lock, 10, Some(lock)).await.unwrap().locks.is_empty());
    assert!(other.check_token(lock, guard.token()).await.unwrap().valid);
    assert!(other.check_sequencer(guard.sequencer()).await.unwrap().valid);
    let status = other.status().await.unwrap();
    assert!(status.locks_held >= 1 && status.sessions >= 1 && status.leader == Some(status.node_id));

    assert_eq!(other.force_release(lock, "stuck").await.unwrap().holders, 1);
    assert_eq!(soon(guard.lost()).await, Loss::TakenAway);
    assert!(!other.check_token(lock, guard.token()).await.unwrap().valid);
    let next = other.lock(lock).no_wait().acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().code(), "not_held");
    assert!(other.check_token(lock, next.token()).await.unwrap().valid);
    next.release().await.unwrap();
}

async fn sessions(keeper: &Keeper, url: &str, lock: &str) {
    // Renewed for longer than its time to live.
    let short = Keeper::builder().ttl(2.secs()).connect(url).await.unwrap();
    let guard = short.lock(lock).acquire().await.unwrap();
    tokio::time::sleep(4500.millis()).await;
    guard.check().unwrap();
    assert_eq!(short.session_ids().await.unwrap().len(), 1);
    short.lock(format!("{lock}/2")).ttl(5.secs()).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(short.session_ids().await.unwrap().len(), 2);
    soon(short.close()).await.unwrap();
    assert_eq!(guard.state(), GuardState::Lost);
    until(keeper, lock, 0, 0).await;
    assert_eq!(short.lock(lock).acquire().await.unwrap_err(), Error::Closed);

    let (too_short, too_long) =
        (keeper.lock(lock).ttl(1.millis()), keeper.lock(lock).ttl((100 * 24 * 60).mins()));
    assert_eq!(too_short.acquire().await.unwrap_err().code(), "invalid");
    assert_eq!(too_long.acquire().await.unwrap_err().code(), "invalid");
    assert_eq!(keeper.lock("").acquire().await.unwrap_err().code(), "invalid");
    assert_eq!(keeper.lock("x".repeat(1_000)).acquire().await.unwrap_err().code(), "too_large");
}

async fn running(keeper: &Keeper, lock: &str) {
    let run = keeper.lock(lock);
    let token = soon(run.run(|lease| async move {
        lease.check()?;
        Ok::<_, Error>(lease.token())
    }))
    .await
    .unwrap()
    .unwrap();
    until(keeper, lock, 0, 0).await;
    let work = run.run(|_| std::future::pending::<()>());
    let (lost, _) = tokio::join!(soon(work), async {
        until(keeper, lock, 1, 0).await;
        keeper.force_release(lock, "test").await.unwrap();
    });
    assert_eq!(lost.unwrap_err(), Error::Lost { lock: lock.into(), why: Loss::TakenAway });
    let next = keeper.lock(lock).acquire().await.unwrap();
    assert!(next.token() > token);
    drop(next);
}
