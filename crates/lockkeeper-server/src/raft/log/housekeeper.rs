//! The housekeeper: creates the next segment before it is needed and deletes purged segments.
//!
//! With its own thread it does both in the background. Without one (simulation, in memory) it creates segments on
//! demand, and everything is deterministic.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::disk::Disk;
use super::error::LogError;
use super::segment::{self, Segment};

/// Retry interval after a segment could not be created, so that freed space is noticed.
const RETRY: Duration = Duration::from_millis(500);

/// Manager of segment files, shared by the writer and the housekeeping thread.
#[derive(Debug)]
pub(crate) struct Housekeeper {
    disk: Arc<dyn Disk>,
    sectors: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    next: Next,
    /// Why the last attempt to create the next segment failed. Kept during the next attempt.
    trouble: Option<LogError>,
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

/// Space for further entries.
#[derive(Debug, Clone)]
pub struct Space {
    /// Bytes left in the current segment.
    pub current_bytes: u64,
    /// Size of the next segment if it is ready, otherwise 0.
    pub next_bytes: u64,
    /// Why the next segment could not be created. This is retried until it succeeds. Meanwhile the log accepts
    /// writes until the current segment is full, and then waits.
    pub trouble: Option<LogError>,
}

impl Housekeeper {
    pub(crate) fn new(disk: Arc<dyn Disk>, sectors: u32, next: Option<Segment>, number: u64) -> Housekeeper {
        let next = next.map_or(Next::Wanted { number }, Next::Ready);
        let state = State {
            next,
            trouble: None,
            remove: VecDeque::new(),
            remove_again: false,
            ahead: false,
            stop: false,
        };
        Housekeeper { disk, sectors, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Enables the background thread, which runs [`Housekeeper::run`].
    pub(crate) fn enable_thread(&self) {
        self.state().ahead = true;
    }

    /// Returns the free space, given the bytes left in the current segment.
    pub(crate) fn space(&self, current_bytes: u64) -> Space {
        let state = self.state();
        let next_bytes = match &state.next {
            Next::Ready(segment) => segment.sectors as u64 * super::disk::SECTOR_BYTES as u64,
            Next::Failed { .. } | Next::Wanted { .. } | Next::Creating => 0,
        };
        Space { current_bytes, next_bytes, trouble: state.trouble.clone() }
    }

    /// Reports whether the next segment is ready.
    pub(crate) fn has_next(&self) -> bool {
        matches!(self.state().next, Next::Ready(_))
    }

    /// Reports whether the next segment is ready. Creates it now if there is no thread for that.
    pub(crate) fn ensure_next(&self) -> bool {
        let mut state = self.state();
        let number = match state.next {
            Next::Ready(_) => return true,
            Next::Creating => return false,
            Next::Wanted { number } | Next::Failed { number } => number,
        };
        // After a panic of the thread, the writer creates the segments.
        if state.ahead || matches!(state.trouble, Some(LogError::Panicked)) {
            return false;
        }
        state.next = Next::Creating;
        drop(state);
        matches!(self.create_next(number).next, Next::Ready(_))
    }

    /// Creates the next segment. The caller has set its state to `Creating`.
    fn create_next(&self, number: u64) -> MutexGuard<'_, State> {
        let made = Segment::create(&*self.disk, number, self.sectors);
        let mut state = self.state();
        state.next = match made {
            Ok(segment) => {
                state.trouble = None;
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
        state.trouble = segment.as_ref().err().cloned();
        state.next = match &segment {
            Ok(_) => Next::Wanted { number: number + 1 },
            Err(_) => Next::Failed { number },
        };
        drop(state);
        self.changed.notify_all();
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
        Segment::create(&*self.disk, number, self.sectors.max(sectors_min))
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
                let (woken, timeout) =
                    self.changed.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner);
                state = woken;
                if timeout.timed_out() && matches!(state.next, Next::Failed { .. }) {
                    state.next = Next::Wanted { number };
                }
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
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
        state.trouble = Some(LogError::Panicked);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
