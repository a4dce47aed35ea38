//! Everything that happened in a run, in one place.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock::now_ns;
use super::event::{Event, Phase, What};

/// More than any scenario has; what comes after is not written down.
const EVENTS_MAX: usize = 200_000;

/// Shared by all who see something.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    shared: Arc<(Mutex<Pages>, Condvar)>,
}

#[derive(Debug, Default)]
struct Pages {
    events: Vec<Event>,
    /// Clients whose process has ended.
    gone: BTreeSet<String>,
}

/// What waiting for an event has brought.
#[derive(Debug)]
pub(crate) enum Found {
    Event(Event),
    TimeOver,
    Gone,
}

impl Record {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self, event: Event) {
        let mut pages = self.pages();
        if pages.events.len() < EVENTS_MAX {
            pages.events.push(event);
        }
        self.shared.1.notify_all();
    }

    /// A client says nothing any more.
    pub(crate) fn gone(&self, name: &str) {
        self.pages().gone.insert(name.to_owned());
        self.shared.1.notify_all();
    }

    /// The next event of a client from a place on, and moves the place behind it.
    pub(crate) fn next_of(&self, name: &str, place: &mut usize, within: Duration) -> Found {
        let until = Instant::now() + within;
        let mut pages = self.pages();
        loop {
            while let Some(event) = pages.events.get(*place) {
                *place += 1;
                if event.who == name {
                    return Found::Event(event.clone());
                }
            }
            if pages.gone.contains(name) {
                return Found::Gone;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Found::TimeOver;
            }
            pages = self.shared.1.wait_timeout(pages, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How much has been written down.
    pub(crate) fn place(&self) -> usize {
        self.pages().events.len()
    }

    /// Who has read the resource under the lock and has not written yet, if somebody has.
    pub(crate) fn last_read(&self) -> Option<String> {
        let pages = self.pages();
        let last = pages.events.iter().rev().find(|event| {
            matches!(event.what, What::Read { .. } | What::Wrote { .. } | What::Refused { .. })
        })?;
        matches!(last.what, What::Read { .. }).then(|| last.who.clone())
    }

    fn fault(&self, text: &str, victim: Option<&str>, phase: Phase) {
        let what = What::Fault { text: text.to_owned(), victim: victim.map(str::to_owned), phase };
        self.write(Event { at_ns: now_ns(), who: "lab".to_owned(), lock: String::new(), what });
    }

    /// A fault that is over at once.
    pub(crate) fn fault_once(&self, text: &str) {
        self.fault(text, None, Phase::Once);
    }

    pub(crate) fn fault_begins(&self, text: &str, victim: Option<&str>) {
        self.fault(text, victim, Phase::Begins);
    }

    pub(crate) fn fault_ends(&self, text: &str, victim: Option<&str>) {
        self.fault(text, victim, Phase::Ends);
    }

    /// All of it, in the order of time.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = self.pages().events.clone();
        events.sort_by_key(|event| event.at_ns);
        events
    }
}
