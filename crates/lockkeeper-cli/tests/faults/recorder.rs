//! What the clients saw, on one clock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lockkeeper_lab::checkers::history::{
    Answered, Grant, History, Hold, Left, Loss, Queue, Read, Release, Write,
};

use crate::LOCKS;
use crate::harness::cell::Cell;
use crate::harness::http;

/// Shared by all clients.
#[derive(Clone)]
pub(crate) struct Recorder {
    began: Instant,
    /// From then on nobody begins anything new.
    end: Instant,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    history: History,
    counts: Counts,
}

/// How often something happened that is no part of the history.
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
        Recorder { began: Instant::now(), end, seen: Arc::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    pub(crate) fn history(&self) -> History {
        self.seen().history.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.seen().counts.clone()
    }

    pub(crate) fn count(&self, what: &str) {
        *self.seen().counts.0.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn grant(&self, client: u32, lock: &str, token: u64, asked: Duration) -> Duration {
        let answered = self.now();
        self.seen().history.grants.push(Grant { client, lock: lock.to_owned(), token, asked, answered });
        answered
    }

    /// Which token a request got, by a name that no other request has.
    pub(crate) fn answered(&self, request: String, token: u64) {
        self.seen().history.answered.push(Answered { request, token });
    }

    /// Who waits for a lock, in their order.
    pub(crate) fn queue(&self, lock: &str, requests: Vec<String>) {
        let queue = Queue { lock: lock.to_owned(), seen: self.now(), requests };
        self.seen().history.queues.push(queue);
    }

    /// A lock was given back, and that was acknowledged.
    pub(crate) fn release(&self, hold: &Hold, asked: Duration) {
        let (lock, token, answered) = (hold.lock.clone(), hold.token, self.now());
        self.seen().history.releases.push(Release { lock, token, asked, answered });
    }

    /// A client was told that it had lost what it relied on.
    pub(crate) fn lost(&self, hold: &Hold, promised: Duration, why: &str) {
        let Hold { client, lock, token, .. } = hold.clone();
        let told = self.now();
        self.seen().history.losses.push(Loss { client, lock, token, told, promised, why: why.to_owned() });
    }

    pub(crate) fn hold(&self, hold: Hold) {
        self.seen().history.holds.push(hold);
    }

    pub(crate) fn write(&self, write: Write) {
        self.seen().history.writes.push(write);
    }

    pub(crate) fn read(&self, key: &str, value: String, version: u64, asked: Duration) {
        let answered = self.now();
        self.seen().history.reads.push(Read { key: key.to_owned(), value, version, asked, answered });
    }

    /// All values, when all is over.
    pub(crate) async fn read_at_the_end(&self, cell: &Cell, leader: u64) {
        for key in LOCKS {
            let asked = self.now();
            let value = cell.get(leader, &format!("/v1/value?key={key}")).await.ok();
            let text = value["value"].as_str().unwrap_or_default().to_owned();
            self.read(key, text, value["version"].as_u64().unwrap(), asked);
        }
    }

    /// Whether nobody holds or waits any more; who does is noted, so that a ghost has a name.
    pub(crate) async fn is_empty(&self, cell: &Cell) -> bool {
        let leader = cell.leader().await;
        let mut left = Vec::new();
        for lock in LOCKS {
            let path = format!("/v1/lock?name={lock}");
            let Some(seen) = http::quick_get(&cell.node(leader).listens, &path).await else { return false };
            for (list, waits) in [("holders", false), ("queue", true)] {
                for one in seen.body[list].as_array().into_iter().flatten() {
                    let owner = one["owner"].as_str().unwrap_or_default().to_owned();
                    left.push(Left { lock: lock.to_owned(), owner, waits });
                }
            }
        }
        // Longer than any time to live.
        let waited = self.now().saturating_sub(self.end.duration_since(self.began)) > Duration::from_secs(30);
        let done = left.is_empty() || waited;
        self.seen().history.left = left;
        done
    }
}
