//! Where each entry is: recent ones in memory, older ones only on the disk.

use std::collections::VecDeque;

use super::frame::Location;
use crate::raft::types::Entry;

/// All entries that are not purged, in order and without a hole: `older`, then `recent`.
#[derive(Debug)]
pub(crate) struct Entries {
    /// The index of the first entry.
    first: u64,
    older: VecDeque<Location>,
    recent: VecDeque<Recent>,
    recent_bytes: usize,
    recent_bytes_max: usize,
}

#[derive(Debug)]
struct Recent {
    entry: Entry,
    bytes: usize,
    /// Which append brought it: the same index may come again after a truncation.
    ticket: u64,
    /// Invariant: `None` until durable; such an entry stays in memory whatever the bound says.
    location: Option<Location>,
}

/// What is needed to give one entry to a reader.
#[derive(Debug)]
pub(crate) enum Found {
    Memory(Entry),
    Disk(Location),
}

impl Entries {
    pub(crate) fn new(recent_bytes_max: usize) -> Entries {
        Entries {
            first: 0,
            older: VecDeque::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            recent_bytes_max,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        (self.older.len() + self.recent.len()) as u64
    }

    /// The first index and the one after the last.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.first, self.first + self.len())
    }

    /// Takes one entry in. The caller has made sure that its index follows the last.
    pub(crate) fn push(&mut self, entry: Entry, bytes: usize, ticket: u64, location: Option<Location>) {
        if self.len() == 0 {
            self.first = entry.log_id.index;
        }
        debug_assert_eq!(entry.log_id.index, self.bounds().1);
        self.recent_bytes += bytes;
        self.recent.push_back(Recent { entry, bytes, ticket, location });
        self.evict();
    }

    /// The append with this ticket is durable, and here is where its entries are. Those that were truncated or
    /// purged meanwhile are skipped.
    pub(crate) fn locate(&mut self, ticket: u64, first: u64, locations: &[Location]) {
        let recent_first = self.first + self.older.len() as u64;
        for (index, location) in (first..).zip(locations) {
            let at = index.checked_sub(recent_first).and_then(|at| usize::try_from(at).ok());
            if let Some(recent) = at.and_then(|at| self.recent.get_mut(at))
                && recent.ticket == ticket
            {
                recent.location = Some(*location);
            }
        }
        self.evict();
    }

    /// Forgets the entries after `last`.
    pub(crate) fn truncate_after(&mut self, last: Option<u64>) {
        let end = last.map_or(0, |last| last.saturating_add(1));
        let keep = usize::try_from(end.saturating_sub(self.first)).unwrap_or(usize::MAX);
        while self.older.len() + self.recent.len() > keep {
            match self.recent.pop_back() {
                Some(recent) => self.recent_bytes -= recent.bytes,
                None => self.older.truncate(keep),
            }
        }
    }

    /// Forgets the entries up to `upto`, and it too.
    pub(crate) fn purge(&mut self, upto: u64) {
        while self.len() > 0 && self.first <= upto {
            if self.older.pop_front().is_none()
                && let Some(recent) = self.recent.pop_front()
            {
                self.recent_bytes -= recent.bytes;
            }
            self.first += 1;
        }
    }

    /// Where to find the entry with this index.
    pub(crate) fn get(&self, index: u64) -> Option<Found> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        match self.older.get(at) {
            Some(location) => Some(Found::Disk(*location)),
            None => self.recent.get(at - self.older.len()).map(|recent| Found::Memory(recent.entry.clone())),
        }
    }

    /// How many bytes the entry with this index has as a record.
    pub(crate) fn bytes(&self, index: u64) -> Option<usize> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        match self.older.get(at) {
            Some(location) => Some(location.bytes as usize),
            None => self.recent.get(at - self.older.len()).map(|recent| recent.bytes),
        }
    }

    fn evict(&mut self) {
        while self.recent_bytes > self.recent_bytes_max
            && let Some(Recent { location: Some(location), bytes, .. }) = self.recent.front()
        {
            self.older.push_back(*location);
            self.recent_bytes -= bytes;
            self.recent.pop_front();
        }
    }
}
