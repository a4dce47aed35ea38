//! The housekeeper: creates the next segment before it is needed, keeps spares in reserve, and deletes purged segments.
//!
//! Spares reserve disk space: while the disk is full, segments are made of them. Their number follows from the reserve that
//! the node asks for, so that a full disk leaves as much space in the log as the node relies on (S11).
//!
//! With its own thread it does all this in the background. Without one (simulation, in memory) it keeps no spares, creates
//! segments on demand, and everything is deterministic.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::disk::{Disk, SECTOR_BYTES};
use super::error::LogError;
use super::segment::{self, FIRST_SECTOR, Segment, Spare};

/// Retry interval after a segment could not be created, so that freed space is noticed.
const RETRY: Duration = Duration::from_millis(500);

/// Manager of segment files, shared by the writer and the housekeeping thread.
#[derive(Debug)]
pub(crate) struct Housekeeper {
    disk: Arc<dyn Disk>,
    sectors: u32,
    state: Mutex<State>,
    changed: Condvar,
    /// Notified after each attempt to create the next segment.
    pub(crate) attempted: Notify,
}

#[derive(Debug)]
struct State {
    next: Next,
    spares: Vec<Spare>,
    // Invariant: greater than that of any spare, so that no name is used twice, even while a segment is made of a spare.
    spare_number: u64,
    /// Number of spares to keep.
    spares_wanted: usize,
    /// Whether the last attempt to create the next segment failed.
    next_failed: bool,
    /// Whether the last attempt to create a spare failed.
    spare_failed: bool,
    /// Why the last attempt to create the next segment or a spare failed. Kept during the next attempt.
    trouble: Option<LogError>,
    /// Whether a spare is becoming a segment.
    converting: bool,
    /// Segments to be deleted, oldest first. One that can't be deleted blocks the rest: deleting a later one would
    /// leave a gap.
    remove: VecDeque<u64>,
    /// Whether segments were added to `remove` since the last pass over it.
    remove_again: bool,
    /// Whether a thread runs [`Housekeeper::run`].
    ahead: bool,
    stop: bool,
}

/// State of the next segment.
#[derive(Debug)]
enum Next {
    /// Not created yet.
    Wanted { number: u64 },
    /// Being created.
    Creating,
    /// Durable and unused.
    Ready(Segment),
    /// Creation failed, most likely for lack of space.
    Failed { number: u64 },
}

impl State {
    /// Returns the readiness of a segment that is not created yet. An attempt after a failed one most likely fails too.
    fn readiness_of_pending(&self) -> Readiness {
        if self.next_failed { Readiness::Failed } else { Readiness::Pending }
    }
}

/// Space for further entries.
#[derive(Debug, Clone)]
pub struct Space {
    /// Bytes left in the current segment.
    pub current_bytes: u64,
    /// Bytes in the next segment if it is ready, otherwise 0.
    pub next_bytes: u64,
    /// Bytes in all spares.
    pub spare_bytes: u64,
    /// Part of the space that entries can't use: it is reserved for votes and purges.
    pub votes_bytes: u64,
    /// Size of a new segment.
    pub segment_bytes: u64,
    /// Why the next segment or a spare could not be created. This is retried until it succeeds. Meanwhile the log
    /// accepts writes until it has no space left, and then waits.
    pub trouble: Option<LogError>,
}

impl Space {
    /// Returns the bytes that entries can use even if the disk is full.
    pub fn entry_bytes(&self) -> u64 {
        (self.current_bytes + self.next_bytes + self.spare_bytes).saturating_sub(self.votes_bytes)
    }
}

/// Whether the next segment is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// It is being created, or about to be.
    Pending,
    /// It could not be created.
    Failed,
}

impl Housekeeper {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        sectors: u32,
        next: Option<Segment>,
        number: u64,
        spares: Vec<Spare>,
    ) -> Housekeeper {
        let next = next.map_or(Next::Wanted { number }, Next::Ready);
        let state = State {
            next,
            spare_number: spares.iter().map(|spare| spare.number + 1).max().unwrap_or(1),
            spares,
            spares_wanted: 0,
            next_failed: false,
            spare_failed: false,
            trouble: None,
            converting: false,
            remove: VecDeque::new(),
            remove_again: false,
            ahead: false,
            stop: false,
        };
        let (state, changed, attempted) = (Mutex::new(state), Condvar::new(), Notify::new());
        Housekeeper { disk, sectors, state, changed, attempted }
    }

    /// Enables the background thread, which runs [`Housekeeper::run`].
    pub(crate) fn enable_thread(&self) {
        self.state().ahead = true;
    }

    /// Returns the free space, given the bytes left in the current segment.
    pub(crate) fn space(&self, current_bytes: u64, votes_bytes: u64) -> Space {
        let usable = |sectors: u32| u64::from(sectors - FIRST_SECTOR) * SECTOR_BYTES as u64;
        let segment_bytes = u64::from(self.sectors) * SECTOR_BYTES as u64;
        let state = self.state();
        let next_bytes = match &state.next {
            Next::Ready(segment) => usable(segment.sectors),
            Next::Creating if state.converting => usable(self.sectors),
            Next::Failed { .. } | Next::Wanted { .. } | Next::Creating => 0,
        };
        let spare_bytes = state.spares.len() as u64 * usable(self.sectors);
        let trouble = state.trouble.clone();
        Space { current_bytes, next_bytes, spare_bytes, votes_bytes, segment_bytes, trouble }
    }

    /// Sets the number of spares to keep.
    pub(crate) fn keep_spares(&self, wanted: usize) {
        let before = std::mem::replace(&mut self.state().spares_wanted, wanted);
        if before < wanted {
            self.changed.notify_all();
        }
    }

    /// Reports whether a thread creates segments ahead of time.
    pub(crate) fn works_ahead(&self) -> bool {
        self.state().ahead
    }

    /// Reports whether the next segment is ready.
    pub(crate) fn has_next(&self) -> bool {
        matches!(self.state().next, Next::Ready(_))
    }

    /// Reports whether the next segment is ready. Creates it now if there is no thread for that.
    pub(crate) fn ensure_next(&self) -> Readiness {
        let mut state = self.state();
        let number = match state.next {
            Next::Ready(_) => return Readiness::Ready,
            Next::Creating => return state.readiness_of_pending(),
            Next::Wanted { number } | Next::Failed { number } => number,
        };
        if state.ahead {
            return state.readiness_of_pending();
        }
        // After a panic of the thread, the writer creates the segments.
        if matches!(state.trouble, Some(LogError::Panicked)) {
            return Readiness::Failed;
        }
        state.next = Next::Creating;
        drop(state);
        match self.create_next(number).next {
            Next::Ready(_) => Readiness::Ready,
            _ => Readiness::Failed,
        }
    }

    /// Creates the next segment. The caller has set its state to `Creating`.
    fn create_next(&self, number: u64) -> MutexGuard<'_, State> {
        let made = self.make(number, self.sectors);
        let mut state = self.state();
        state.converting = false;
        state.next_failed = made.is_err();
        state.next = match made {
            Ok(segment) => {
                if !state.spare_failed {
                    state.trouble = None;
                }
                Next::Ready(segment)
            }
            Err(error) => {
                let why = error.retry_message();
                tracing::warn!("failed to create the next segment of the log, retrying: {why}");
                state.trouble = Some(error);
                Next::Failed { number }
            }
        };
        self.changed.notify_all();
        self.attempted.notify_one();
        state
    }

    /// Makes a segment of a spare, or creates a new one if no spare fits.
    fn make(&self, number: u64, sectors: u32) -> Result<Segment, LogError> {
        while let Some(spare) = self.take_spare(sectors) {
            let made = Segment::from_spare(&*self.disk, number, sectors, &spare);
            if made.is_ok() {
                return made;
            }
            // Renamed before the failure, or deleted by an operator: then it is no spare any more.
            let name = segment::spare_name(spare.number);
            if self.disk.list().is_ok_and(|names| names.contains(&name)) {
                let mut state = self.state();
                state.converting = false;
                state.spares.push(spare);
                return made;
            }
        }
        Segment::create(&*self.disk, number, sectors)
    }

    /// Takes a spare to make a segment of this size of it.
    fn take_spare(&self, sectors: u32) -> Option<Spare> {
        let mut state = self.state();
        let spare = if sectors == self.sectors { state.spares.pop() } else { None };
        state.converting = spare.is_some();
        spare
    }

    /// Creates a spare.
    fn create_spare<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let number = state.spare_number;
        state.spare_number += 1;
        drop(state);
        let made = Spare::create(&*self.disk, number, self.sectors);
        let mut state = self.state();
        state.spare_failed = made.is_err();
        match made {
            Ok(spare) => {
                state.spares.push(spare);
                state.trouble = None;
            }
            Err(error) => {
                if state.trouble.is_none() {
                    let why = error.retry_message();
                    tracing::warn!("failed to reserve disk space for the log, retrying: {why}");
                }
                state.trouble = Some(error);
            }
        }
        state
    }

    /// Returns segment `number` with at least this many sectors, and requests the one after it.
    pub(crate) fn next_segment(&self, number: u64, sectors_min: u32) -> Result<Segment, LogError> {
        let mut state = self.state();
        while matches!(state.next, Next::Creating) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let ready = std::mem::replace(&mut state.next, Next::Creating);
        drop(state);
        let segment = self.use_or_create(ready, number, sectors_min);
        let mut state = self.state();
        state.converting = false;
        state.next_failed = segment.is_err();
        if segment.is_err() || !state.spare_failed {
            state.trouble = segment.as_ref().err().cloned();
        }
        state.next = match &segment {
            Ok(_) => Next::Wanted { number: number + 1 },
            Err(_) => Next::Failed { number },
        };
        drop(state);
        self.changed.notify_all();
        self.attempted.notify_one();
        segment
    }

    fn use_or_create(&self, ready: Next, number: u64, sectors_min: u32) -> Result<Segment, LogError> {
        if let Next::Ready(segment) = ready {
            if segment.number == number && segment.sectors >= sectors_min {
                return Ok(segment);
            }
            // An entry larger than a segment gets one of its own size. Segment numbers have no gaps, so it replaces
            // the one that was ready.
            self.remove_file(segment.number)?;
        }
        self.make(number, self.sectors.max(sectors_min))
    }

    /// Deletes segments, or has the thread delete them, oldest first.
    pub(crate) fn remove(&self, numbers: Vec<u64>) {
        if numbers.is_empty() {
            return;
        }
        let mut state = self.state();
        state.remove.extend(numbers);
        state.remove_again = true;
        if state.ahead {
            self.changed.notify_all();
        } else {
            drop(self.remove_all(state));
        }
    }

    /// Ends [`Housekeeper::run`].
    pub(crate) fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_all();
    }

    /// Runs the housekeeping thread.
    pub(crate) fn run(&self) {
        let mut state = self.state();
        loop {
            if state.remove_again {
                state = self.remove_all(state);
            } else if state.stop {
                return;
            } else if let Next::Wanted { number } = state.next {
                state.next = Next::Creating;
                drop(state);
                state = self.create_next(number);
            } else if let Next::Failed { number } = state.next {
                let (woken, timed_out) = self.wait_to_retry(state);
                state = woken;
                if timed_out && matches!(state.next, Next::Failed { .. }) {
                    state.next = Next::Wanted { number };
                }
            } else if state.spare_failed {
                let (woken, timed_out) = self.wait_to_retry(state);
                state = woken;
                if timed_out && matches!(state.next, Next::Ready(_)) {
                    state = match state.spares.len() < state.spares_wanted {
                        true => self.create_spare(state),
                        false => {
                            // The reserve was lowered.
                            (state.spare_failed, state.trouble) = (false, None);
                            state
                        }
                    };
                }
            } else if state.spares.len() < state.spares_wanted && matches!(state.next, Next::Ready(_)) {
                state = self.create_spare(state);
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits for a change or for the retry interval. Also returns whether the interval is over.
    fn wait_to_retry<'a>(&'a self, state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let is_quiet = |state: &mut State| {
            !state.stop && !state.remove_again && !matches!(state.next, Next::Wanted { .. })
        };
        let waited = self.changed.wait_timeout_while(state, RETRY, is_quiet);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        (state, timeout.timed_out())
    }

    fn remove_all<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.remove_again = false;
        while let Some(number) = state.remove.front().copied() {
            drop(state);
            let removed = self.remove_file(number);
            state = self.state();
            match removed {
                Ok(()) => drop(state.remove.pop_front()),
                Err(error) => {
                    tracing::warn!(%error, "failed to delete a purged segment of the log, retrying after the next purge");
                    return state;
                }
            }
        }
        state
    }

    fn remove_file(&self, number: u64) -> Result<(), LogError> {
        let name = segment::name(number);
        // One sync per file: otherwise a crash could keep an older file and lose a newer one.
        match self.disk.remove(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.disk.sync_folder(),
        }
        .map_err(|e| LogError::disk("delete", &self.disk.folder(), &name, e))
    }

    /// Records that the housekeeping thread has panicked, so that the writer does not wait for it.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.ahead = false;
        state.next = Next::Failed { number: 0 };
        state.next_failed = true;
        state.trouble = Some(LogError::Panicked);
        self.changed.notify_all();
        self.attempted.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
