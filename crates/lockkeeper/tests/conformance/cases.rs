//! What must hold for every engine with a lock: who is inside, who waits, who is told.

use std::future::Future;
use std::time::{Duration, Instant};

use lockkeeper::prelude::*;
use lockkeeper::{GuardState, TokenKind, Unfenced};
use lockkeeper_testkit::wire::Wire;
use rustix::process::Signal;

use crate::child::{self, Child, connect};
use crate::servers::Site;

/// A future that must end before long.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(90), future).await.expect("it takes too long")
}

async fn unfenced(site: &impl Site) -> Keeper<Unfenced> {
    connect(&site.url()).await.0
}

/// Nobody holds it: whoever asks has it long before a lease would have run out by itself.
async fn is_free(keeper: &Keeper<Unfenced>, lock: &str) {
    let guard = keeper.lock(lock).ttl(30.secs()).wait(15.secs()).acquire().await;
    guard.unwrap_or_else(|error| panic!("{lock} was left behind: {error}")).release().await.unwrap();
}

pub(crate) fn sixteen_processes_exclude_each_other<S: Site>() {
    const ROUNDS: usize = 5;
    let site = S::start();
    let folder = tempfile::tempdir().unwrap();
    let (url, path) = (site.url(), folder.path().to_string_lossy().into_owned());
    let settings = [("URL", url.as_str()), ("LOCK", "contended"), ("FOLDER", &path), ("ROUNDS", "5")];
    let children: Vec<Child> = (0..16).map(|_| Child::start("contender", &settings)).collect();
    for child in children {
        child.ends_well();
    }
    check_log(folder.path(), 16 * ROUNDS);
}

/// For an engine that lives in one process.
pub(crate) async fn sixteen_keepers_exclude_each_other<S: Site>() {
    let site = S::start();
    let folder = tempfile::tempdir().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (url, path) = (site.url(), folder.path().to_owned());
        tasks.spawn(async move { child::contend_for(&url, "contended", &path, 5).await });
    }
    while let Some(ended) = soon(tasks.join_next()).await {
        ended.unwrap();
    }
    check_log(folder.path(), 16 * 5);
}

/// Everybody was inside as often as it should, and the tokens rose from one to the next.
fn check_log(folder: &std::path::Path, expected: usize) {
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let tokens: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), expected);
    if tokens[0] != 0 {
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens must rise: {tokens:?}");
    }
}

pub(crate) async fn a_lock_is_tried_waited_for_and_given_back<S: Site>() {
    let site = S::start();
    let (keeper, other) = (unfenced(&site).await, unfenced(&site).await);
    let lock = "orders/4472";
    let guard = soon(keeper.lock(lock).ttl(10.secs()).wait(5.secs()).acquire()).await.unwrap();
    assert_eq!((guard.lock_name(), guard.state()), (lock, GuardState::Held));
    assert!(guard.remaining() > 5.secs() && guard.remaining() < 10.secs(), "{:?}", guard.remaining());
    // Others, and other tasks of the same keeper.
    for asks in [&other, &keeper] {
        assert_eq!(soon(asks.lock(lock).no_wait().acquire()).await.unwrap_err().code(), "busy");
        assert!(soon(asks.lock(lock).try_acquire()).await.unwrap().is_none());
        let started = Instant::now();
        let error = soon(asks.lock(lock).wait(100.millis()).acquire()).await.unwrap_err();
        assert_eq!(error.code(), "timeout");
        assert!(started.elapsed() >= 100.millis());
    }
    let waits = other.lock(lock);
    let waiting = tokio::spawn(async move { waits.wait(20.secs()).acquire().await.unwrap() });
    let same_keeper = keeper.lock(lock);
    let waiting_too = tokio::spawn(async move { same_keeper.wait(20.secs()).acquire().await.unwrap() });
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    let (first, second) = (soon(waiting), soon(waiting_too));
    // One after the other, whoever is first; a guard that is dropped lets the next one in.
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
    is_free(&keeper, lock).await;
    keeper.close().await.unwrap();
    assert_eq!(keeper.lock(lock).acquire().await.unwrap_err().code(), "closed");
}

pub(crate) async fn an_acquire_that_is_dropped_at_any_await_leaves_nothing_behind<S: Site>() {
    let site = S::start();
    let (keeper, other) = (unfenced(&site).await, unfenced(&site).await);
    let mut polls = 0;
    loop {
        polls += 1;
        let lock = format!("dropped/{}", polls % 3);
        let ask = keeper.lock(&*lock).ttl(30.secs()).wait(10.secs());
        let mut acquire = Box::pin(ask.acquire());
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
        is_free(&other, &lock).await;
        if is_done || polls > 200 {
            break;
        }
    }
    // The same while it waits in the queue: whoever comes next is not held up.
    let guard = soon(keeper.lock("queue").acquire()).await.unwrap();
    for wait in [0, 1, 3, 10, 30, 100] {
        let waiting = other.lock("queue").ttl(30.secs());
        assert!(tokio::time::timeout(wait.millis(), waiting.acquire()).await.is_err());
    }
    guard.release().await.unwrap();
    is_free(&keeper, "queue").await;
    keeper.close().await.unwrap();
    other.close().await.unwrap();
    assert_eq!(until_nothing_is_left(&site), Vec::<String>::new());
}

pub(crate) fn until_nothing_is_left(site: &impl Site) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let left = site.left_behind();
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) async fn a_holder_that_is_paused_loses_its_lock_and_cannot_release_that_of_the_next<S: Site>() {
    let site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let (url, ttl_ms) = (site.url(), S::TTL.as_millis().to_string());
    let settings = [("URL", url.as_str()), ("LOCK", "paused"), ("TTL_MS", ttl_ms.as_str())];
    let mut holder = Child::start("holder", &settings);
    let words = tokio::task::spawn_blocking(move || {
        let words = holder.says();
        (holder, words)
    });
    let (mut holder, words) = words.await.unwrap();
    let its_token: u64 = words.strip_prefix("holds ").unwrap().parse().unwrap();
    assert!(soon(keeper.lock("paused").try_acquire()).await.unwrap().is_none());
    holder.signal(Signal::STOP);
    let ttl = S::TTL.max(10.secs());
    let (next, token) = match &fenced {
        Some(fenced) => {
            let guard = fenced.lock("paused").ttl(ttl).wait(40.secs()).acquire().await.unwrap();
            let token = guard.token().0;
            (Err(guard), token)
        }
        None => (Ok(keeper.lock("paused").ttl(ttl).wait(40.secs()).acquire().await.unwrap()), 1),
    };
    assert!(token > its_token);
    holder.signal(Signal::CONT);
    let said = tokio::task::spawn_blocking(move || (holder.says(), holder.says())).await.unwrap();
    assert_eq!(said.0, "knows");
    assert!(["not_held", "session_lost", "lost"].contains(&said.1.as_str()), "{}", said.1);
    // The next one holds it still.
    assert!(soon(keeper.lock("paused").try_acquire()).await.unwrap().is_none());
    match next {
        Ok(guard) => guard.release().await.unwrap(),
        Err(guard) => guard.release().await.unwrap(),
    }
}

pub(crate) async fn a_holder_that_is_cut_off_is_told_before_the_next_one_is_let_in<S: Site>() {
    let site = S::start();
    let proxies: Vec<Wire> = site.addresses().into_iter().map(|address| Wire::to(address).unwrap()).collect();
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address).collect();
    let (cut_off, _) = connect(&site.url_at(&addresses)).await;
    let other = unfenced(&site).await;
    let guard = cut_off.lock("told").ttl(S::TTL).acquire().await.unwrap();
    let next = other.lock("told").ttl(10.secs());
    let mut next = tokio::spawn(async move { next.acquire().await.unwrap() });
    // It is kept for longer than its time to live while the wire is whole.
    assert!(tokio::time::timeout(S::TTL + S::TTL / 2, &mut next).await.is_err());
    guard.check().unwrap();
    for proxy in &proxies {
        proxy.cut();
    }
    let next = soon(next).await.unwrap();
    assert_ne!(guard.state(), GuardState::Held, "both think that they hold it");
    soon(guard.lost()).await;
    for proxy in &proxies {
        proxy.heal();
    }
    next.check().unwrap();
    drop(guard);
    // It can be used again, without being connected anew.
    next.release().await.unwrap();
    let again = soon(cut_off.lock("told").acquire()).await.unwrap();
    again.check().unwrap();
}

pub(crate) async fn a_connection_that_is_cut_and_healed_costs_no_lock_or_says_so<S: Site>() {
    let site = S::start();
    let proxies: Vec<Wire> = site.addresses().into_iter().map(|address| Wire::to(address).unwrap()).collect();
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address).collect();
    let (keeper, _) = connect(&site.url_at(&addresses)).await;
    let other = unfenced(&site).await;
    let ttl = S::TTL.max(6.secs());
    let guard = keeper.lock("cut").ttl(ttl).acquire().await.unwrap();
    for proxy in &proxies {
        proxy.cut();
        proxy.heal();
    }
    // Renewed after all, or lost: either way everybody agrees.
    let until = Instant::now() + ttl * 2;
    let (mut last, mut renewed) = (guard.remaining(), false);
    while guard.state() == GuardState::Held && !renewed {
        assert!(Instant::now() < until, "neither renewed nor lost: {:?}", guard.remaining());
        tokio::time::sleep(20.millis()).await;
        renewed = guard.remaining() > last;
        last = guard.remaining();
    }
    if renewed {
        assert!(soon(other.lock("cut").try_acquire()).await.unwrap().is_none());
        soon(guard.release()).await.unwrap();
    } else {
        assert!(guard.check().is_err());
        drop(guard);
    }
    is_free(&other, "cut").await;
    soon(keeper.lock("cut").acquire()).await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_server_that_is_killed_and_comes_back_lets_nobody_else_in_unnoticed<S: Site>() {
    let mut site = S::start();
    let (keeper, other) = (unfenced(&site).await, unfenced(&site).await);
    let ttl = S::TTL.max(10.secs());
    let guard = keeper.lock("killed").ttl(ttl).acquire().await.unwrap();
    let site = tokio::task::spawn_blocking(move || {
        site.kill();
        site.restart();
        site
    });
    let site = site.await.unwrap();
    let taken = soon(other.lock("killed").ttl(ttl).try_acquire()).await.unwrap();
    if taken.is_some() {
        assert_ne!(guard.state(), GuardState::Held, "the server forgot it, and nobody was told");
    }
    drop((taken, guard));
    is_free(&other, "killed").await;
    drop(site);
}

pub(crate) async fn tokens_rise_over_a_thousand_grants_and_a_restart<S: Site>() {
    let mut site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let Some(fenced) = fenced else {
        assert_eq!(keeper.capabilities().token, TokenKind::None);
        let error = keeper.fenced().unwrap_err();
        assert_eq!(error.code(), "unsupported", "{error}");
        return;
    };
    let mut last = 0;
    for _ in 0..1_000 {
        let guard = fenced.lock("rises").acquire().await.unwrap();
        assert!(guard.token().0 > last, "{} after {last}", guard.token().0);
        assert!(guard.sequencer().contains("rises"));
        last = guard.token().0;
        guard.release().await.unwrap();
    }
    drop(fenced);
    soon(keeper.close()).await.unwrap();
    drop(keeper);
    let site = tokio::task::spawn_blocking(move || {
        site.kill();
        site.restart();
        site
    });
    let site = site.await.unwrap();
    let (_keeper, fenced) = connect(&site.url()).await;
    let guard = fenced.unwrap().lock("rises").acquire().await.unwrap();
    assert!(guard.token().0 > last, "{} after {last} and a restart", guard.token().0);
}

pub(crate) async fn fifty_waiters_have_it_one_after_the_other<S: Site>() {
    let site = S::start();
    let (first, mut keepers) = (unfenced(&site).await, Vec::new());
    let guard = first.lock("queue").ttl(30.secs()).acquire().await.unwrap();
    for _ in 0..5 {
        keepers.push(unfenced(&site).await);
    }
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (order, mut entered) = tokio::sync::mpsc::channel(50);
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..50usize {
        let lock = keepers[number % 5].lock("queue").ttl(30.secs());
        let (inside, order) = (inside.clone(), order.clone());
        waiters.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two are inside");
            order.send(number).await.unwrap();
            tokio::task::yield_now().await;
            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            guard.release().await.unwrap();
        });
        // One after the other, so that the order is known.
        tokio::time::sleep(2.millis()).await;
    }
    guard.release().await.unwrap();
    while let Some(ended) = soon(waiters.join_next()).await {
        ended.unwrap();
    }
    let mut places = Vec::new();
    while let Ok(number) = entered.try_recv() {
        places.push(number);
    }
    assert_eq!(places.len(), 50);
    for keeper in 0..5 {
        let of_keeper: Vec<_> = places.iter().filter(|number| *number % 5 == keeper).collect();
        assert!(of_keeper.is_sorted(), "nobody overtakes within a keeper: {of_keeper:?}");
    }
}
