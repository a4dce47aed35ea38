//! Faults while a lock is held: a paused holder, a network partition, a killed server.

use std::time::Instant;

use lockkeeper::GuardState;
use lockkeeper::prelude::*;
use lockkeeper_testkit::wire::Wire;
use rustix::process::Signal;

use crate::child::{Child, connect};
use crate::servers::Site;
use crate::support::{assert_free, soon, unfenced};

pub(crate) async fn paused_holder_loses_its_lock_and_cannot_release_its_successors<S: Site>() {
    let site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let (url, ttl_ms) = (site.url(), S::TTL.as_millis().to_string());
    let settings = [("URL", url.as_str()), ("LOCK", "paused"), ("TTL_MS", ttl_ms.as_str())];
    let mut holder = Child::start("holder", &settings);
    let message = tokio::task::spawn_blocking(move || {
        let message = holder.next_message();
        (holder, message)
    });
    let (mut holder, message) = message.await.unwrap();
    let paused_token: u64 = message.strip_prefix("holds ").unwrap().parse().unwrap();
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
    assert!(token > paused_token);
    holder.signal(Signal::CONT);
    let messages = tokio::task::spawn_blocking(move || (holder.next_message(), holder.next_message()));
    let (check, release) = messages.await.unwrap();
    assert_eq!(check, "check failed");
    assert!(["not_held", "session_lost", "lost"].contains(&release.as_str()), "{release}");
    // The successor still holds the lock.
    assert!(soon(keeper.lock("paused").try_acquire()).await.unwrap().is_none());
    match next {
        Ok(guard) => guard.release().await.unwrap(),
        Err(guard) => guard.release().await.unwrap(),
    }
}

pub(crate) async fn partitioned_holder_detects_the_loss_before_the_lock_is_granted_again<S: Site>() {
    let site = S::start();
    let proxies: Vec<Wire> = site.addresses().into_iter().map(|address| Wire::to(address).unwrap()).collect();
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address).collect();
    let (partitioned, _) = connect(&site.url_at(&addresses)).await;
    let other = unfenced(&site).await;
    let guard = partitioned.lock("partition").ttl(S::TTL).acquire().await.unwrap();
    let next = other.lock("partition").ttl(10.secs());
    let mut next = tokio::spawn(async move { next.acquire().await.unwrap() });
    // Renewals keep the lock for longer than its time to live.
    assert!(tokio::time::timeout(S::TTL + S::TTL / 2, &mut next).await.is_err());
    guard.check().unwrap();
    for proxy in &proxies {
        proxy.cut();
    }
    let next = soon(next).await.unwrap();
    assert_ne!(guard.state(), GuardState::Held, "both guards are held");
    soon(guard.lost()).await;
    for proxy in &proxies {
        proxy.heal();
    }
    next.check().unwrap();
    drop(guard);
    // The keeper works again without a new connect.
    next.release().await.unwrap();
    let again = soon(partitioned.lock("partition").acquire()).await.unwrap();
    again.check().unwrap();
}

pub(crate) async fn guard_is_renewed_or_lost_after_a_short_partition<S: Site>() {
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
    // Either outcome is allowed, but the guard and the server must agree.
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
    assert_free(&other, "cut").await;
    soon(keeper.lock("cut").acquire()).await.unwrap().release().await.unwrap();
}

pub(crate) async fn guard_is_not_held_if_a_restarted_server_grants_its_lock_again<S: Site>() {
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
        assert_ne!(guard.state(), GuardState::Held, "the server lost the lock, and the guard is still held");
    }
    drop((taken, guard));
    assert_free(&other, "killed").await;
    drop(site);
}
