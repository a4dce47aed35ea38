//! Thundering herds: a release wakes one waiter, and its cost does not depend on the number of waiters.

use lockkeeper::Fairness;
use lockkeeper::prelude::*;
use tokio::task::JoinSet;

use crate::child::connect;
use crate::servers::Site;
use crate::servers::zookeeper::Zookeeper;
use crate::support::{soon, until};

const KEEPERS: usize = 5;
const WAITERS: usize = 50;

/// Requests on top of those for releases, such as renewals.
const OTHER_REQUESTS_MAX: u64 = 25;

/// A held lock, and the waiters of all keepers.
struct Herd {
    guard: Guard<lockkeeper::Unfenced>,
    waiters: JoinSet<()>,
    _keepers: Vec<Keeper<lockkeeper::Unfenced>>,
}

async fn start_waiters(site: &impl Site) -> Herd {
    let (holder, _) = connect(&site.url()).await;
    let guard = holder.lock("herd").ttl(60.secs()).acquire().await.unwrap();
    let mut keepers = vec![holder];
    let mut waiters = JoinSet::new();
    for _ in 0..KEEPERS {
        let (keeper, _) = connect(&site.url()).await;
        for _ in 0..WAITERS / KEEPERS {
            let lock = keeper.lock("herd").ttl(60.secs());
            waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        }
        keepers.push(keeper);
    }
    // Without a common FIFO queue, only the head of each keeper's queue is visible.
    let visible = if keepers[0].capabilities().fairness == Fairness::Fifo { WAITERS } else { KEEPERS };
    until("all wait", async || keepers[0].who("herd").await.unwrap().waiting as usize == visible).await;
    Herd { guard, waiters, _keepers: keepers }
}

pub(crate) async fn release_cost_is_independent_of_waiters<S: Site>() {
    let site = S::start_counting();
    let mut herd = start_waiters(&site).await;
    let before = site.requests();
    herd.guard.release().await.unwrap();
    while let Some(ended) = soon(herd.waiters.join_next()).await {
        ended.unwrap();
    }
    let requests = site.requests() - before;
    // If a release woke all waiters, it would cost at least as many requests.
    let (releases, limit) = (WAITERS as u64 + 1, S::REQUESTS_PER_RELEASE_MAX);
    assert!(
        requests <= releases * limit + OTHER_REQUESTS_MAX,
        "{requests} requests for {releases} releases: each may cost {limit}"
    );
}

/// Uses `wchp`, which lists each watched path, followed by a line for each session that watches it.
#[tokio::test]
async fn zookeeper_node_is_watched_only_by_its_successor() {
    let site = Zookeeper::start();
    let herd = start_waiters(&site).await;
    let watched = || {
        let mut paths: Vec<(String, Vec<String>)> = Vec::new();
        for line in site.command("wchp").lines() {
            match line.strip_prefix('\t') {
                Some(session) => {
                    paths.last_mut().unwrap().1.push(session.trim_start_matches("0x").to_owned())
                }
                None if line.starts_with('/') => paths.push((line.to_owned(), Vec::new())),
                None => {}
            }
        }
        paths
    };
    // Each waiter watches the node before its own. The holder's session may watch its own node, to detect a forced release.
    until("all watch", async || watched().len() >= WAITERS).await;
    for (path, sessions) in watched() {
        let others: Vec<_> = sessions.iter().filter(|session| !path.contains(session.as_str())).collect();
        let entry = path.rsplit('/').next().unwrap();
        assert!(others.len() <= 1, "{path} is watched by {sessions:?}");
        assert!(entry.matches('_').count() >= 3, "the parent node is watched: {path}");
    }
    assert_eq!(watched().len(), WAITERS);
    drop(herd);
}
