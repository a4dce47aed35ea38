//! The events of a run.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock::now_ns;
use super::event::{Event, EventKind, Phase};

/// Limit on the events of a run; later ones are dropped.
const EVENTS_MAX: usize = 200_000;

/// A log that clients, resource and lab share.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventLog {
    shared: Arc<(Mutex<Events>, Condvar)>,
}

#[derive(Debug, Default)]
struct Events {
    events: Vec<Event>,
    /// Clients whose process has exited.
    exited: BTreeSet<String>,
}

/// Result of waiting for an event.
#[derive(Debug)]
pub(crate) enum Next {
    Event(Event),
    Timeout,
    Exited,
}

impl EventLog {
    fn lock(&self) -> MutexGuard<'_, Events> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: Event) {
        let mut log = self.lock();
        if log.events.len() < EVENTS_MAX {
            log.events.push(event);
        }
        self.shared.1.notify_all();
    }

    /// Marks that a client has exited.
    pub(crate) fn mark_exited(&self, name: &str) {
        self.lock().exited.insert(name.to_owned());
        self.shared.1.notify_all();
    }

    /// Waits for the next event of a client behind `position`, and moves `position` behind it.
    pub(crate) fn next_of(&self, name: &str, position: &mut usize, within: Duration) -> Next {
        let deadline = Instant::now() + within;
        let mut log = self.lock();
        loop {
            while let Some(event) = log.events.get(*position) {
                *position += 1;
                if event.who == name {
                    return Next::Event(event.clone());
                }
            }
            if log.exited.contains(name) {
                return Next::Exited;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Timeout;
            }
            log = self.shared.1.wait_timeout(log, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of events so far.
    pub(crate) fn position(&self) -> usize {
        self.lock().events.len()
    }

    /// The client that has read the resource under the lock and has not written yet.
    pub(crate) fn last_read(&self) -> Option<String> {
        let log = self.lock();
        let last = log.events.iter().rev().find(|event| {
            matches!(event.what, EventKind::Read { .. } | EventKind::Wrote { .. } | EventKind::Refused { .. })
        })?;
        matches!(last.what, EventKind::Read { .. }).then(|| last.who.clone())
    }

    fn fault(&self, text: &str, victim: Option<&str>, phase: Phase) {
        let what = EventKind::Fault { text: text.to_owned(), victim: victim.map(str::to_owned), phase };
        self.push(Event { at_ns: now_ns(), who: "lab".to_owned(), lock: String::new(), what });
    }

    /// Logs a fault without duration.
    pub(crate) fn fault_once(&self, text: &str) {
        self.fault(text, None, Phase::Once);
    }

    pub(crate) fn fault_begins(&self, text: &str, victim: Option<&str>) {
        self.fault(text, victim, Phase::Begins);
    }

    pub(crate) fn fault_ends(&self, text: &str, victim: Option<&str>) {
        self.fault(text, victim, Phase::Ends);
    }

    /// All events in the order of time.
    pub(crate) fn sorted(&self) -> Vec<Event> {
        let mut events = self.lock().events.clone();
        events.sort_by_key(|event| event.at_ns);
        events
    }
}
