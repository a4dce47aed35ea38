//! Fifty wait, one is woken: what a release costs the servers does not grow with those who wait.

use lockkeeper::Fairness;
use lockkeeper::prelude::*;
use tokio::task::JoinSet;

use crate::cases::soon;
use crate::child::connect;
use crate::servers::Site;
use crate::servers::zookeeper::Zookeeper;
use crate::sessions::shared::until;

const KEEPERS: usize = 5;
const WAITERS: usize = 50;

/// A lock that is held, and fifty on five keepers who wait for it.
struct Herd {
    guard: Guard<lockkeeper::Unfenced>,
    waiters: JoinSet<()>,
    _keepers: Vec<Keeper<lockkeeper::Unfenced>>,
}

async fn gather(site: &impl Site) -> Herd {
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
    // Where keepers race, one of each stands in the queue of the server.
    let seen = if keepers[0].capabilities().fairness == Fairness::Fifo { WAITERS } else { KEEPERS };
    until("all of them wait", async || keepers[0].who("herd").await.unwrap().waiting as usize == seen).await;
    Herd { guard, waiters, _keepers: keepers }
}

pub(crate) async fn a_release_costs_the_same_however_many_wait<S: Site>() {
    let site = S::start_counting();
    let mut herd = gather(&site).await;
    let before = site.requests();
    herd.guard.release().await.unwrap();
    while let Some(ended) = soon(herd.waiters.join_next()).await {
        ended.unwrap();
    }
    let requests = site.requests() - before;
    // Renewals and the like may come on top; a herd would be fifty for each.
    let (releases, most) = (WAITERS as u64 + 1, S::REQUESTS_FOR_A_RELEASE);
    assert!(
        requests <= releases * most + 25,
        "{requests} requests for {releases} releases: each may cost {most}"
    );
}

/// The four-letter word that lists the watches by path: the path, then the sessions that watch it, one in a line.
#[tokio::test]
async fn each_node_of_zookeeper_is_watched_by_the_next_in_line_alone() {
    let site = Zookeeper::start();
    let herd = gather(&site).await;
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
    // Each watches the one before it, and the holder's node may be watched by its own session, which wants to know if it
    // is taken away.
    until("all of them watch", async || watched().len() >= WAITERS).await;
    for (path, sessions) in watched() {
        let others: Vec<_> = sessions.iter().filter(|session| !path.contains(session.as_str())).collect();
        let entry = path.rsplit('/').next().unwrap();
        assert!(others.len() <= 1, "{path} is watched by {sessions:?}");
        assert!(entry.matches('_').count() >= 3, "the folder itself is not watched: {path}");
    }
    assert_eq!(watched().len(), WAITERS);
    drop(herd);
}
