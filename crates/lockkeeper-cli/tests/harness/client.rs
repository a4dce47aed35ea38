//! Clients: raw HTTP calls to one node, and a load that uses the library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::Keeper;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::cell::Cell;
use super::http::Answer;
use super::until;

/// Opens a session on the leader.
pub async fn open_session(cell: &Cell, ttl_ms: u64) -> String {
    let opened = cell.call("/v1/session/open", Some(&json!({"ttl_ms": ttl_ms}))).await;
    opened["session"].as_str().expect("an id").to_owned()
}

/// Acquires a free lock from the leader. The request id makes retries idempotent.
pub async fn grant(cell: &Cell, session: &str, lock: &str) -> Value {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let request = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let body = json!({"session": session, "lock": lock, "request": request});
    cell.call("/v1/lock/acquire", Some(&body)).await
}

/// Tries to acquire a lock from one node, without waiting.
pub async fn acquire(cell: &Cell, node: u64, session: &str, lock: &str) -> Answer {
    cell.post(node, "/v1/lock/acquire", json!({"session": session, "lock": lock})).await
}

pub async fn keep_alive(cell: &Cell, node: u64, session: &str) -> Answer {
    cell.post(node, "/v1/session/keepalive", json!({"session": session})).await
}

/// The token of a grant.
pub fn token(grant: &Value) -> u64 {
    grant["token"].as_u64().expect("a token")
}

/// Clients that acquire and release their own locks in a loop, and optionally write and read a value under each lock. A
/// failed request ends its client and fails the test: the library has to hide all faults of the cell.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: JoinSet<Result<(), String>>,
}

impl Load {
    pub async fn start(cell: &Cell, clients: usize) -> Load {
        Load::begin(cell, clients, false).await
    }

    /// The same with values.
    pub async fn start_with_values(cell: &Cell, clients: usize) -> Load {
        Load::begin(cell, clients, true).await
    }

    async fn begin(cell: &Cell, clients: usize, with_values: bool) -> Load {
        let mut load = Load::empty();
        for number in 0..clients {
            let builder = Keeper::builder()
                .owner(format!("load-{number}"))
                .ttl(Duration::from_secs(10))
                .request_timeout(Duration::from_secs(30));
            let keeper = cell.keeper(builder).await;
            let (stop, done) = (load.stop.clone(), load.done.clone());
            load.clients.spawn(async move {
                let lock = keeper.lock(format!("load/{number}")).wait(Duration::from_secs(30));
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let guard = lock.acquire().await.map_err(|error| format!("acquire: {error}"))?;
                    let token = guard.token().0;
                    if token <= last {
                        return Err(format!("token {token} after {last}"));
                    }
                    last = token;
                    if with_values {
                        let value = keeper.value(format!("load/{number}"));
                        let text = token.to_string().into_bytes();
                        value
                            .clone()
                            .fence(&guard)
                            .put(text.clone())
                            .await
                            .map_err(|e| format!("put: {e}"))?;
                        let read = value.get().await.map_err(|error| format!("get: {error}"))?;
                        if read.as_ref().map(|read| &read.bytes) != Some(&text) {
                            return Err(format!("{read:?} was read after {token} was written"));
                        }
                    }
                    guard.release().await.map_err(|error| format!("release: {error}"))?;
                    done.fetch_add(1, Ordering::Relaxed);
                    // Leaves CPU time to others.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                keeper.close().await.map_err(|error| format!("close: {error}"))
            });
        }
        load.until_more(clients as u64).await;
        load
    }

    fn empty() -> Load {
        Load { stop: Arc::default(), done: Arc::default(), clients: JoinSet::new() }
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits for a number of further pairs.
    pub async fn until_more(&mut self, more: u64) {
        let goal = self.done() + more;
        let (done, clients) = (self.done.clone(), &mut self.clients);
        until(&format!("{more} more pairs"), async || {
            if let Some(ended) = clients.try_join_next() {
                panic!("a client of the load has ended: {ended:?}");
            }
            (done.load(Ordering::Relaxed) >= goal).then_some(())
        })
        .await;
    }

    /// Ends the load and returns the number of acquire/release pairs.
    pub async fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            assert_eq!(ended.expect("no client panics"), Ok(()), "the library did not hide a failed request");
        }
        self.done()
    }
}
