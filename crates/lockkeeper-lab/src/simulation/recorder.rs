//! What the clients saw, in true time.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::machine::true_now;
use crate::checkers::History;
use crate::checkers::history::Grant;

/// Shared by all clients.
#[derive(Clone, Default)]
pub(super) struct Recorder {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    history: History,
    counts: BTreeMap<String, u64>,
    troubles: Vec<String>,
    trace: Trace,
}

/// A hash over everything in the order in which it happened: two runs of a seed have the same.
#[derive(Default)]
struct Trace {
    hasher: DefaultHasher,
    told: Option<Vec<String>>,
}

impl Recorder {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what is told as text, for whoever looks at one seed.
    pub(super) fn keep_trace(&self) {
        self.seen().trace.told = Some(Vec::new());
    }

    /// Something happened.
    pub(super) fn tell(&self, at: Duration, what: &str) {
        let mut seen = self.seen();
        (at, what).hash(&mut seen.trace.hasher);
        if let Some(told) = &mut seen.trace.told {
            told.push(format!("{:>9.3} {what}", at.as_secs_f64()));
        }
    }

    /// How often something happened that is no part of the history.
    pub(super) fn count(&self, what: &str) {
        *self.seen().counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Something that must not be, and that no checker looks for.
    pub(super) fn trouble(&self, at: Duration, what: String) {
        self.tell(at, &what);
        self.seen().troubles.push(what);
    }

    /// Changes the history.
    pub(super) fn note<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        change(&mut self.seen().history)
    }

    /// A grant; says when.
    pub(super) fn grant(&self, client: u32, lock: &str, token: u64, asked: Duration) -> Duration {
        let answered = true_now();
        self.tell(answered, &format!("client {client} holds {lock} with token {token}"));
        self.note(|history| {
            history.grants.push(Grant { client, lock: lock.to_owned(), token, asked, answered });
        });
        answered
    }

    /// Everything: the history, the counts, the troubles, the trace and its hash.
    pub(super) fn take(&self) -> Recorded {
        let mut seen = std::mem::take(&mut *self.seen());
        Recorded {
            history: seen.history,
            counts: seen.counts,
            troubles: seen.troubles,
            hash: seen.trace.hasher.finish(),
            told: seen.trace.told.take().unwrap_or_default(),
        }
    }
}

/// What is left of a run.
pub(super) struct Recorded {
    /// What the clients saw.
    pub(super) history: History,
    /// How often what happened.
    pub(super) counts: BTreeMap<String, u64>,
    /// What must not be.
    pub(super) troubles: Vec<String>,
    /// Of everything in its order.
    pub(super) hash: u64,
    /// Everything in its order, if it was asked for.
    pub(super) told: Vec<String>,
}
