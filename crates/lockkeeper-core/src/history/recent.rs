//! The last events of all locks together. Appending is cheap; reading the events of one lock scans all of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{LockEvent, RECENT_MAX};
use crate::id::LockName;
use crate::reads;
use crate::weighed::LogicalBytes;

/// Events per page: what is copied when an event is appended while a snapshot shares the page.
pub(super) const PAGE: usize = 1_024;

/// A page of events.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Page {
    /// Hashes of the names, scanned first: comparing names costs more.
    hashes: Vec<u32>,
    events: Vec<(LockName, LockEvent)>,
}

impl Page {
    fn new() -> Page {
        Page { hashes: Vec::with_capacity(PAGE), events: Vec::with_capacity(PAGE) }
    }

    pub(super) fn last(&self) -> Option<&(LockName, LockEvent)> {
        self.events.last()
    }

    pub(super) fn into_events(self) -> impl Iterator<Item = (LockName, LockEvent)> {
        self.events.into_iter()
    }
}

/// The recent events, in pages.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Recent {
    // Invariant: all pages but the last are full. Shared with copies of the table until changed.
    pages: VecDeque<Arc<Page>>,
    // Invariant: the logical bytes of all events.
    bytes: u64,
}

impl Recent {
    /// Appends an event. Returns the page that is evicted, if any.
    pub(super) fn push(&mut self, lock: &LockName, event: LockEvent) -> Option<Arc<Page>> {
        let mut retired = None;
        self.bytes += lock.logical_bytes() + event.logical_bytes();
        if self.pages.back().is_none_or(|page| page.events.len() == PAGE) {
            if self.pages.len() * PAGE >= RECENT_MAX {
                retired = self.pages.pop_front();
                self.bytes -= retired
                    .iter()
                    .flat_map(|page| &page.events)
                    .map(LogicalBytes::logical_bytes)
                    .sum::<u64>();
            }
            self.pages.push_back(Arc::new(Page::new()));
        }
        if let Some(page) = self.pages.back_mut() {
            let page = Arc::make_mut(page);
            page.hashes.push(hash(lock));
            page.events.push((lock.clone(), event));
        }
        retired
    }

    /// The events of a lock, newest first.
    pub(super) fn of<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = &'a LockEvent> + use<'a> {
        let (wanted, lock) = (hash(lock), lock.clone());
        self.pages.iter().rev().flat_map(move |page| {
            reads::count(1);
            let lock = lock.clone();
            let places = (0..page.hashes.len()).rev().filter(move |place| page.hashes[*place] == wanted);
            places
                .map(|place| &page.events[place])
                .filter(move |(name, _)| *name == lock)
                .map(|(_, event)| event)
        })
    }

    /// The logical bytes of all events.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All events, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(LockName, LockEvent)> {
        self.pages.iter().flat_map(|page| &page.events)
    }

    pub(super) fn len(&self) -> usize {
        let last = self.pages.back().map_or(0, |page| page.events.len());
        self.pages.len().saturating_sub(1) * PAGE + last
    }
}

/// Hash of a name. It need not resist attacks: names with equal hashes are compared.
fn hash(name: &str) -> u32 {
    let mut sum = name.len() as u64;
    for part in name.as_bytes().chunks(8) {
        let mut eight = [0; 8];
        eight[..part.len()].copy_from_slice(part);
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(eight)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    (sum >> 32) as u32
}
