//! Records what the clients observe, on one clock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lockkeeper_lab::checkers::history::{
    Grant, GrantedRequest, History, Hold, Leftover, Loss, Queue, Read, Release, Write,
};

use crate::LOCKS;
use crate::harness::cell::Cell;
use crate::harness::http;

/// The recorder, shared by all clients.
#[derive(Clone)]
pub(crate) struct Recorder {
    began: Instant,
    /// End of the test: clients start no new operations afterwards.
    end: Instant,
    recorded: Arc<Mutex<Recorded>>,
}

#[derive(Default)]
struct Recorded {
    history: History,
    counts: Counts,
}

/// Counts of events that are not part of the history.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts(BTreeMap<String, u64>);

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(|(what, count)| format!("{what} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}

impl Recorder {
    pub(crate) fn new(end: Instant) -> Recorder {
        Recorder { began: Instant::now(), end, recorded: Arc::default() }
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap()
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    pub(crate) fn history(&self) -> History {
        self.recorded().history.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.recorded().counts.clone()
    }

    pub(crate) fn count(&self, what: &str) {
        *self.recorded().counts.0.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn grant(&self, client: u32, lock: &str, token: u64, invoked: Duration) -> Duration {
        let returned = self.now();
        self.recorded().history.grants.push(Grant {
            client,
            lock: lock.to_owned(),
            token,
            invoked,
            returned,
        });
        returned
    }

    /// Records the token of a request with a unique name.
    pub(crate) fn record_granted_request(&self, request: String, token: u64) {
        self.recorded().history.granted_requests.push(GrantedRequest { request, token });
    }

    /// Records the queue of a lock, in order.
    pub(crate) fn queue(&self, lock: &str, requests: Vec<String>) {
        let queue = Queue { lock: lock.to_owned(), seen: self.now(), requests };
        self.recorded().history.queues.push(queue);
    }

    /// Records an acknowledged release.
    pub(crate) fn release(&self, hold: &Hold, invoked: Duration) {
        let (lock, token, returned) = (hold.lock.clone(), hold.token, self.now());
        self.recorded().history.releases.push(Release { lock, token, invoked, returned });
    }

    /// Records that a client was told of a lost grant.
    pub(crate) fn lost(&self, hold: &Hold, promised: Duration, why: &str) {
        let Hold { client, lock, token, .. } = hold.clone();
        let told_at = self.now();
        self.recorded().history.losses.push(Loss {
            client,
            lock,
            token,
            told_at,
            promised,
            why: why.to_owned(),
        });
    }

    pub(crate) fn hold(&self, hold: Hold) {
        self.recorded().history.holds.push(hold);
    }

    pub(crate) fn write(&self, write: Write) {
        self.recorded().history.writes.push(write);
    }

    pub(crate) fn read(&self, key: &str, value: String, version: u64, invoked: Duration) {
        let returned = self.now();
        self.recorded().history.reads.push(Read { key: key.to_owned(), value, version, invoked, returned });
    }

    /// Reads all values at the end of the test.
    pub(crate) async fn read_at_the_end(&self, cell: &Cell, leader: u64) {
        for key in LOCKS {
            let invoked = self.now();
            let value = cell.get(leader, &format!("/v1/value?key={key}")).await.ok();
            let text = value["value"].as_str().unwrap_or_default().to_owned();
            self.read(key, text, value["version"].as_u64().unwrap(), invoked);
        }
    }

    /// Whether no holder and no waiter is left. Those that are left are recorded for the ghost checker.
    pub(crate) async fn is_empty(&self, cell: &Cell) -> bool {
        let leader = cell.leader().await;
        let mut left = Vec::new();
        for lock in LOCKS {
            let path = format!("/v1/lock?name={lock}");
            let Some(recorded) = http::quick_get(&cell.node(leader).listen_addr, &path).await else {
                return false;
            };
            for (list, waits) in [("holders", false), ("queue", true)] {
                for one in recorded.body[list].as_array().into_iter().flatten() {
                    let owner = one["owner"].as_str().unwrap_or_default().to_owned();
                    left.push(Leftover { lock: lock.to_owned(), owner, waits });
                }
            }
        }
        // Longer than any TTL.
        let waited = self.now().saturating_sub(self.end.duration_since(self.began)) > Duration::from_secs(30);
        let done = left.is_empty() || waited;
        self.recorded().history.left = left;
        done
    }
}
