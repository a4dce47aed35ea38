//! Leaks: entries on the servers, connections and tasks that remain after use.

use std::time::{Duration, Instant};

use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::Site;
use crate::support::soon;

/// The limit of connections of an idle keeper; the HTTP pool of Consul has the most.
const IDLE_CONNECTIONS_MAX: usize = 40;

pub(crate) async fn ten_thousand_acquires_leave_nothing_behind<S: Site>() {
    let site = S::start();
    let tasks_before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (keeper, _fenced) = connect(&site.url()).await;
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..20 {
        let keeper = keeper.clone();
        workers.spawn(async move {
            for round in 0..500 {
                // Some guards are released, some guards are dropped, and some acquires are dropped.
                let lock = keeper.lock(format!("leak/{worker}/{}", round % 50)).ttl(30.secs());
                match round % 10 {
                    0 => drop(lock.acquire().await.unwrap()),
                    1 => drop(tokio::time::timeout(Duration::from_micros(50), lock.acquire()).await),
                    _ => lock.acquire().await.unwrap().release().await.unwrap(),
                }
            }
        });
    }
    let all = async {
        while let Some(ended) = workers.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(120.secs(), all).await.expect("the acquires take too long");
    // Dropped guards are released in the background.
    let until = Instant::now() + 15.secs();
    while site.connections().is_some_and(|connections| connections > IDLE_CONNECTIONS_MAX) {
        assert!(Instant::now() < until, "{:?} connections", site.connections());
        tokio::time::sleep(20.millis()).await;
    }
    soon(keeper.close()).await.unwrap();
    drop((keeper, _fenced));
    let until = Instant::now() + 15.secs();
    loop {
        let (left, connections) = (site.left_behind(), site.connections().unwrap_or(0));
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        if left.is_empty() && connections == 0 && tasks <= tasks_before {
            break;
        }
        assert!(
            Instant::now() < until,
            "left: {left:?}, {connections} connections, {tasks} tasks (before: {tasks_before})"
        );
        tokio::time::sleep(20.millis()).await;
    }
}
