//! Locations of entries: recent ones are in memory, older ones only on disk.

use std::collections::VecDeque;

use super::frame::Location;
use crate::raft::types::Entry;

/// All entries that are not purged, in order and without gaps: `older`, then `recent`.
#[derive(Debug)]
pub(crate) struct Entries {
    /// Index of the first entry.
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
    /// Identifies the append: the same index may be appended again after a truncation.
    ticket: u64,
    /// Invariant: `None` until durable. Such an entry stays in memory, whatever `recent_bytes_max` is.
    location: Option<Location>,
}

/// The source from which a reader gets an entry.
#[derive(Debug)]
pub(crate) enum EntrySource {
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

    /// Returns the first index and the one after the last.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.first, self.first + self.len())
    }

    /// Appends an entry. The caller has checked that its index follows the last.
    pub(crate) fn push(&mut self, entry: Entry, bytes: usize, ticket: u64, location: Option<Location>) {
        if self.len() == 0 {
            self.first = entry.log_id.index;
        }
        debug_assert_eq!(entry.log_id.index, self.bounds().1);
        self.recent_bytes += bytes;
        self.recent.push_back(Recent { entry, bytes, ticket, location });
        self.evict();
    }

    /// Records the locations of an append that is now durable. Skips entries that were truncated or purged
    /// meanwhile.
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

    /// Drops the entries after `last`.
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

    /// Drops the entries up to and including `upto`.
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

    /// Returns the source of the entry with this index.
    pub(crate) fn get(&self, index: u64) -> Option<EntrySource> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        match self.older.get(at) {
            Some(location) => Some(EntrySource::Disk(*location)),
            None => {
                self.recent.get(at - self.older.len()).map(|recent| EntrySource::Memory(recent.entry.clone()))
            }
        }
    }

    /// Returns the encoded size of the entry with this index.
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
