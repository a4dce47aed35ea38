//! Helpers that all tests share.

use std::future::Future;
use std::time::{Duration, Instant};

use lockkeeper::Unfenced;
use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::Site;

/// The limit of everything that the tests wait for: generous, for busy machines.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// Awaits a future that must complete before the timeout.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("not complete after {TIMEOUT:?}"))
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(5.millis()).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap_or_else(|_| panic!("not after {TIMEOUT:?}: {what}"));
}

pub(crate) async fn unfenced(site: &impl Site) -> Keeper<Unfenced> {
    connect(&site.url()).await.0
}

/// Checks that a lock is free: it can be acquired long before an abandoned lease would expire.
pub(crate) async fn assert_free(keeper: &Keeper<Unfenced>, lock: &str) {
    let guard = keeper.lock(lock).ttl(30.secs()).wait(15.secs()).acquire().await;
    guard.unwrap_or_else(|error| panic!("{lock} is still held: {error}")).release().await.unwrap();
}

/// Waits until nothing is left on the servers.
pub(crate) fn assert_nothing_left(site: &impl Site) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let left = site.left_behind();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left on the servers: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
