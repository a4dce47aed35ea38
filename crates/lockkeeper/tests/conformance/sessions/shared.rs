//! Cases for all engines with sessions.

use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{Event, GuardState, Loss};
use lockkeeper_testkit::wire::Wire;

use crate::servers::Site;
use crate::support::{soon, until};

/// Waits until a keeper sees this number of holders and waiters.
pub(crate) async fn until_queue(keeper: &Keeper, lock: &str, holders: usize, waiting: u32) {
    until(&format!("{holders} holders and {waiting} waiting for {lock}"), async || {
        let state = keeper.who(lock).await.unwrap();
        (state.holders.len(), state.waiting) == (holders, waiting)
    })
    .await;
}

/// Runs each operation in turn on one server, which must be empty afterwards.
pub(crate) async fn operations_leave_nothing_behind<S: Site>() {
    let site = S::start();
    let keeper = connect::<S>(&site.url(), "first").await;
    let other = connect::<S>(&site.url(), "second").await;
    exclusion(&keeper, &other).await;
    dropped_acquires(&keeper, &other).await;
    request_ids(&keeper).await;
    names(&keeper, &other).await;
    force_release(&keeper, &other).await;
    close::<S>(&keeper, &site.url()).await;
    keeper.close().await.unwrap();
    other.close().await.unwrap();
    until("nothing is left on the server", async || site.left_behind().is_empty()).await;
}

pub(crate) async fn connect<S: Site>(url: &str, owner: &str) -> Keeper {
    Keeper::builder().owner(owner).ttl(S::TTL).connect(url).await.unwrap()
}

async fn exclusion(keeper: &Keeper, other: &Keeper) {
    let guard = soon(keeper.lock("a/b").acquire()).await.unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(other.lock("a/b").no_wait().acquire().await.unwrap_err().code(), "busy");
    // Two tasks of one keeper exclude each other (etcd-io/etcd#11360).
    assert_eq!(keeper.lock("a/b").no_wait().acquire().await.unwrap_err().code(), "busy");
    // A prefix of a name, and a longer name, are other locks.
    drop(soon(other.lock("a").no_wait().acquire()).await.unwrap());
    drop(soon(other.lock("a/b/c").no_wait().acquire()).await.unwrap());
    let started = std::time::Instant::now();
    assert_eq!(soon(other.lock("a/b").wait(50.millis()).acquire()).await.unwrap_err().code(), "timeout");
    assert!(started.elapsed() >= 50.millis());
    let state = other.who("a/b").await.unwrap();
    assert_eq!((state.holders[0].owner.as_str(), state.holders[0].token), ("first", guard.token().0));
    assert!(other.check_sequencer(guard.sequencer()).await.unwrap().valid);
    let token = guard.token();
    guard.release().await.unwrap();
    let next = soon(other.lock("a/b").acquire()).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.unwrap();
    until_queue(keeper, "a/b", 0, 0).await;
}

/// Drops an acquire a little later each time, so that every await is covered.
async fn dropped_acquires(keeper: &Keeper, other: &Keeper) {
    for step in 0..40_u32 {
        let held = if step % 2 == 0 { Some(soon(other.lock("c").acquire()).await.unwrap()) } else { None };
        let lock = keeper.lock("c");
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(step) * 150), lock.acquire()).await;
        drop(held);
        soon(other.lock("c").acquire()).await.unwrap().release().await.unwrap();
    }
    until_queue(keeper, "c", 0, 0).await;
}

async fn request_ids(keeper: &Keeper) {
    let lock = keeper.lock("r").request_id("same");
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(soon(task).await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
    assert_eq!(keeper.who("r").await.unwrap().holders.len(), 1);
    drop(guards);
    until_queue(keeper, "r", 0, 0).await;
    assert_eq!(lock.acquire().await.unwrap_err().code(), "not_held");
}

async fn names(keeper: &Keeper, other: &Keeper) {
    let longest = "x".repeat(512);
    let umlauts = "ü".repeat(256);
    let all = [
        ".",
        "..",
        "/",
        "//a//",
        "a b",
        "100%",
        "%2F",
        "größe",
        "\u{1F512}",
        "?a=b&c#d",
        "\\",
        "\"",
        "_-_",
        &longest,
        &umlauts,
    ];
    for name in all {
        let guard = soon(keeper.lock(name).acquire()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(other.lock(name).no_wait().acquire().await.unwrap_err().code(), "busy", "{name}");
        assert_eq!(other.who(name).await.unwrap().holders.len(), 1, "{name}");
        let page = other.locks(name, 100, None).await.unwrap();
        assert!(page.locks.iter().any(|state| state.lock == name), "{name}: {page:?}");
        guard.release().await.unwrap();
    }
    assert_eq!(keeper.lock("").acquire().await.unwrap_err().code(), "invalid");
    assert_eq!(keeper.lock("x".repeat(513)).acquire().await.unwrap_err().code(), "too_large");
}

async fn force_release(keeper: &Keeper, other: &Keeper) {
    let guard = soon(keeper.lock("f").acquire()).await.unwrap();
    let forced = other.force_release("f", "stuck").await.unwrap();
    assert_eq!(forced.holders, 1);
    assert!(forced.last_token > guard.token().0);
    // The former holder's release does not affect later grants, not even in its own keeper.
    let next = soon(keeper.lock("f").no_wait().acquire()).await.unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.unwrap_err().code(), "not_held");
    assert_eq!(other.who("f").await.unwrap().holders.len(), 1);
    // The holder detects a forced release.
    other.force_release("f", "stuck again").await.unwrap();
    assert_eq!(soon(next.lost()).await, Loss::TakenAway);
    assert_eq!(next.release().await.unwrap_err().code(), "not_held");
    until_queue(keeper, "f", 0, 0).await;
}

async fn close<S: Site>(keeper: &Keeper, url: &str) {
    let short = connect::<S>(url, "third").await;
    let guard = soon(short.lock("z").acquire()).await.unwrap();
    assert_eq!(short.session_ids().await.unwrap().len(), 1);
    soon(short.close()).await.unwrap();
    assert_eq!(guard.state(), GuardState::Lost);
    until_queue(keeper, "z", 0, 0).await;
    assert_eq!(short.lock("z").acquire().await.unwrap_err(), Error::Closed);
}

/// The queue is FIFO, and waiters that leave it are skipped.
pub(crate) async fn fifo<S: Site>() {
    let site = S::start();
    let keeper = connect::<S>(&site.url(), "first").await;
    let other = connect::<S>(&site.url(), "second").await;
    let guard = soon(keeper.lock("q").acquire()).await.unwrap();
    let mut waiters = Vec::new();
    for index in 0..6 {
        let lock = if index % 2 == 0 { other.lock("q") } else { keeper.lock("q") };
        waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        until_queue(&keeper, "q", 1, index + 1).await;
    }
    for aborted in [1, 4] {
        waiters[aborted].abort();
    }
    until_queue(&keeper, "q", 1, 4).await;
    let mut token = guard.token();
    guard.release().await.unwrap();
    for (index, waiter) in waiters.into_iter().enumerate() {
        if [1, 4].contains(&index) {
            continue;
        }
        let guard = soon(waiter).await.unwrap();
        assert!(guard.token() > token);
        token = guard.token();
        guard.release().await.unwrap();
    }
    until_queue(&keeper, "q", 0, 0).await;
    modes(&keeper, &other).await;
}

async fn modes(keeper: &Keeper, other: &Keeper) {
    let readers = (
        soon(keeper.lock("m").shared().acquire()).await.unwrap(),
        soon(other.lock("m").shared().acquire()).await.unwrap(),
    );
    assert_eq!(other.lock("m").no_wait().acquire().await.unwrap_err().code(), "busy");
    // A reader does not overtake a waiting writer.
    let writer = tokio::spawn({
        let lock = keeper.lock("m");
        async move { lock.acquire().await.unwrap() }
    });
    until_queue(keeper, "m", 2, 1).await;
    assert_eq!(other.lock("m").shared().no_wait().acquire().await.unwrap_err().code(), "busy");
    let reader = tokio::spawn({
        let lock = other.lock("m").shared();
        async move { lock.acquire().await.unwrap() }
    });
    until_queue(keeper, "m", 2, 2).await;
    drop(readers);
    let writer = soon(writer).await.unwrap();
    until_queue(keeper, "m", 1, 1).await;
    drop(writer);
    drop(soon(reader).await.unwrap());
    until_queue(keeper, "m", 0, 0).await;

    let counted = |keeper: &Keeper| keeper.lock("s").capacity(3);
    let one = soon(counted(keeper).acquire()).await.unwrap();
    let two = soon(counted(other).permits(2).acquire()).await.unwrap();
    assert_eq!(counted(other).no_wait().acquire().await.unwrap_err().code(), "busy");
    assert_eq!(other.lock("s").capacity(5).no_wait().acquire().await.unwrap_err().code(), "invalid");
    let third = tokio::spawn({
        let lock = counted(other);
        async move { lock.acquire().await.unwrap() }
    });
    until_queue(keeper, "s", 2, 1).await;
    one.release().await.unwrap();
    drop(soon(third).await.unwrap());
    two.release().await.unwrap();
    until_queue(keeper, "s", 0, 0).await;
}

/// A partition that lasts until the session has expired: the guard is lost before the lock is granted again, and the keeper
/// recovers with a new session.
pub(crate) async fn partition<S: Site>(ttl: Duration) {
    let site = S::start();
    let proxy = Wire::to(site.addresses()[0]).unwrap();
    let keeper = Keeper::builder().ttl(ttl).connect(&site.url_at(&[proxy.address])).await.unwrap();
    let direct = connect::<S>(&site.url(), "direct").await;
    let guard = soon(keeper.lock("a").acquire()).await.unwrap();
    let mut events = keeper.events();
    proxy.cut();
    until("jeopardy or loss", async || guard.state() != GuardState::Held).await;
    assert_eq!(soon(guard.lost()).await, Loss::Deadline);
    // The lock is granted again only after the guard is lost.
    let next = tokio::spawn({
        let lock = direct.lock("a");
        async move { lock.acquire().await.unwrap() }
    });
    let next = soon(next).await.unwrap();
    assert_ne!(guard.state(), GuardState::Held);
    proxy.heal();
    // The keeper learns that its session has expired, and opens a new one.
    until("the guard is lost", async || guard.state() == GuardState::Lost).await;
    let mut lost = false;
    while !lost {
        lost = matches!(soon(events.next()).await.unwrap(), Event::SessionLost { .. });
    }
    assert_eq!(guard.release().await.unwrap_err().code(), "session_lost");
    let token = next.token();
    next.release().await.unwrap();
    let again = soon(keeper.lock("a").acquire()).await.unwrap();
    assert!(again.token() > token);
}

/// A killed and restarted server: the guard is still held, the waiter still waits, and tokens keep increasing.
pub(crate) async fn restart<S: Site>(ttl: Duration) {
    let mut site = S::start();
    let keeper = Keeper::builder().ttl(ttl).connect(&site.url()).await.unwrap();
    let other = Keeper::builder().ttl(ttl).connect(&site.url()).await.unwrap();
    let guard = soon(keeper.lock("a").acquire()).await.unwrap();
    let waiter = tokio::spawn({
        let lock = other.lock("a");
        async move { lock.acquire().await.unwrap() }
    });
    until_queue(&other, "a", 1, 1).await;
    let site = tokio::task::spawn_blocking(move || {
        site.kill();
        site.restart();
        site
    })
    .await
    .unwrap();
    let token = guard.token();
    until("the server answers", async || keeper.who("a").await.is_ok()).await;
    // In ZooKeeper, the session is suspended meanwhile.
    until("the guard is held again", async || guard.state() == GuardState::Held).await;
    soon(guard.release()).await.unwrap();
    let next = soon(waiter).await.unwrap();
    assert!(next.token() > token);
    drop(next);
    drop(site);
}

/// The error of connecting to an unreachable address, and to a server that is not of this engine.
pub(crate) async fn connect_errors(scheme: &str) {
    let connect = async |address: &str| {
        // On a busy machine, even a refused connection can take more than a second.
        let keeper =
            Keeper::builder().connect_timeout(3.secs()).connect(&format!("{scheme}://{address}")).await;
        keeper.unwrap_err()
    };
    let unused = "127.0.0.1:1";
    // On a busy machine, the timeout can cut off the last attempt; the error then names the timeout.
    until("the error names the cause", async || {
        let error = connect(unused).await;
        assert_eq!(error.code(), "unavailable", "{error}");
        assert!(error.to_string().contains(unused), "{error}");
        error.to_string().contains("refused")
    })
    .await;
    // A server that speaks another protocol.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            use std::io::{Read, Write};
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
            let _ = stream.read(&mut [0; 1_024]);
        }
    });
    let error = connect(&address.to_string()).await;
    assert!(["unavailable", "invalid"].contains(&error.code()), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let text = error.to_string().to_lowercase();
    assert!(text.contains(&scheme.to_lowercase()), "{error}");
}
