//! Records the observations of clients, in true time.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::machine::true_now;
use crate::checkers::History;
use crate::checkers::history::Grant;

/// The recorder, shared by all clients.
#[derive(Clone, Default)]
pub(super) struct Recorder {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    history: History,
    counts: BTreeMap<String, u64>,
    failures: Vec<String>,
    trace: Trace,
}

/// The trace and its hash: two runs of a seed have the same hash.
#[derive(Default)]
struct Trace {
    hasher: DefaultHasher,
    lines: Option<Vec<String>>,
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the trace as text.
    pub(super) fn keep_trace(&self) {
        self.state().trace.lines = Some(Vec::new());
    }

    /// Records an event.
    pub(super) fn record_event(&self, at: Duration, what: &str) {
        let mut state = self.state();
        (at, what).hash(&mut state.trace.hasher);
        if let Some(lines) = &mut state.trace.lines {
            lines.push(format!("{:>9.3} {what}", at.as_secs_f64()));
        }
    }

    /// Counts an event that is not part of the history.
    pub(super) fn count(&self, what: &str) {
        *self.state().counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Records a failure that no checker covers.
    pub(super) fn record_failure(&self, at: Duration, what: String) {
        self.record_event(at, &what);
        self.state().failures.push(what);
    }

    /// Updates the history.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        change(&mut self.state().history)
    }

    /// Records a grant and returns its time.
    pub(super) fn grant(&self, client: u32, lock: &str, token: u64, invoked: Duration) -> Duration {
        let returned = true_now();
        self.record_event(returned, &format!("client {client} holds {lock} with token {token}"));
        self.update(|history| {
            history.grants.push(Grant { client, lock: lock.to_owned(), token, invoked, returned });
        });
        returned
    }

    /// Takes everything that was recorded.
    pub(super) fn take(&self) -> Recorded {
        let mut state = std::mem::take(&mut *self.state());
        Recorded {
            history: state.history,
            counts: state.counts,
            failures: state.failures,
            hash: state.trace.hasher.finish(),
            lines: state.trace.lines.take().unwrap_or_default(),
        }
    }
}

/// The records of a run.
pub(super) struct Recorded {
    /// Observations of the clients.
    pub(super) history: History,
    /// Event counts.
    pub(super) counts: BTreeMap<String, u64>,
    /// Failures that no checker covers.
    pub(super) failures: Vec<String>,
    /// Hash of the trace.
    pub(super) hash: u64,
    /// The trace, if requested.
    pub(super) lines: Vec<String>,
}
