//! A client that always waits for the lock that the plain client of a scenario holds.

use std::time::Duration;

use lockkeeper::Keeper;

use super::client::{Busy, LOCKS, RETRY_PAUSE, Work};
use super::machine::{true_after, true_now};
use crate::checkers::history::Hold;

/// The lock of the scenario.
pub(super) const LOCK: &str = LOCKS[0];
/// Longer than any outage of a scenario, so that the session of the waiter survives it.
const TTL: Duration = Duration::from_secs(10);
/// Longest wait for the lock.
const WAIT: Duration = Duration::from_secs(10);
/// How long it holds the lock.
const HOLD: Duration = Duration::from_millis(20);

/// Acquires the lock again and again, and holds it for a moment.
pub(super) async fn run(client: u32, work: Work) {
    let busy = Busy::new(&work.busy);
    let keeper = loop {
        match Keeper::builder().owner("waiter").ttl(TTL).connect(&work.url).await {
            Ok(keeper) => break keeper,
            Err(_) if true_now() >= work.until => return,
            Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
        }
    };
    while true_now() < work.until {
        let invoked = true_now();
        if let Ok(guard) = keeper.lock(LOCK).wait(WAIT).acquire().await {
            let token = guard.token().0;
            let from = work.recorder.grant(client, LOCK, token, invoked);
            // Recorded from its start, in case of an end of the run during the hold.
            let until = true_after(HOLD.min(guard.remaining()));
            let hold = Hold { client, lock: LOCK.to_owned(), token, from, until };
            work.recorder.update(|history| history.holds.push(hold));
            tokio::time::sleep(HOLD).await;
            let _ = guard.release().await;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    drop(busy);
    std::future::pending().await
}
