//! The housekeeper: has the next segment ready before it is needed, and deletes those that nobody needs.
//!
//! With a thread of its own both happen behind the writer's back. Without one (simulation, in memory) segments
//! are made when the writer asks for them, and everything is deterministic.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::disk::Disk;
use super::error::LogError;
use super::segment::{self, Segment};

/// How often a segment that could not be made is tried again, so that freed space is noticed.
const RETRY: Duration = Duration::from_millis(500);

/// Shared by the writer and the housekeeping thread.
#[derive(Debug)]
pub(crate) struct Housekeeper {
    disk: Arc<dyn Disk>,
    sectors: u32,
    chores: Mutex<Chores>,
    changed: Condvar,
}

#[derive(Debug)]
struct Chores {
    next: Next,
    /// Why the last try to make the next segment failed. Stays while another try is under way.
    trouble: Option<LogError>,
    /// Segments to be deleted, the oldest first. One that can't be deleted stays in front of the rest: without
    /// it they would look like a gap.
    remove: VecDeque<u64>,
    /// Whether `remove` has got something since it was last gone through.
    remove_again: bool,
    /// Whether a thread does the chores.
    ahead: bool,
    stop: bool,
}

/// The state of the next segment.
#[derive(Debug)]
enum Next {
    /// Not there yet.
    Wanted { number: u64 },
    /// The thread is making it.
    InMaking,
    /// Durable and unused.
    Ready(Segment),
    /// It could not be made, most likely for lack of space.
    Failed { number: u64 },
}

/// Where the space for further entries stands.
#[derive(Debug, Clone)]
pub struct Space {
    /// Bytes left in the segment that is being written.
    pub current_bytes: u64,
    /// Bytes of the next segment, if it is ready; 0 while it is being made, or could not be made.
    pub next_bytes: u64,
    /// Why the next segment could not be made. It is tried again until it succeeds; meanwhile the log goes on
    /// until the current segment is full, and then waits.
    pub trouble: Option<LogError>,
}

impl Housekeeper {
    pub(crate) fn new(disk: Arc<dyn Disk>, sectors: u32, next: Option<Segment>, number: u64) -> Housekeeper {
        let next = next.map_or(Next::Wanted { number }, Next::Ready);
        let chores = Chores {
            next,
            trouble: None,
            remove: VecDeque::new(),
            remove_again: false,
            ahead: false,
            stop: false,
        };
        Housekeeper { disk, sectors, chores: Mutex::new(chores), changed: Condvar::new() }
    }

    /// From now on a thread runs [`Housekeeper::run`].
    pub(crate) fn work_ahead(&self) {
        self.chores().ahead = true;
    }

    /// What is left, given what the current segment still takes.
    pub(crate) fn space(&self, current_bytes: u64) -> Space {
        let chores = self.chores();
        let next_bytes = match &chores.next {
            Next::Ready(segment) => segment.sectors as u64 * super::disk::SECTOR_BYTES as u64,
            Next::Failed { .. } | Next::Wanted { .. } | Next::InMaking => 0,
        };
        Space { current_bytes, next_bytes, trouble: chores.trouble.clone() }
    }

    /// Whether the next segment is ready.
    pub(crate) fn has_next(&self) -> bool {
        matches!(self.chores().next, Next::Ready(_))
    }

    /// Whether the next segment is ready. Without a thread for it, it is made now.
    pub(crate) fn secure_next(&self) -> bool {
        let mut chores = self.chores();
        let number = match chores.next {
            Next::Ready(_) => return true,
            Next::InMaking => return false,
            Next::Wanted { number } | Next::Failed { number } => number,
        };
        // A thread that has panicked leaves making segments to the writer.
        if chores.ahead || matches!(chores.trouble, Some(LogError::Panicked)) {
            return false;
        }
        chores.next = Next::InMaking;
        drop(chores);
        matches!(self.make(number).next, Next::Ready(_))
    }

    /// Makes the next segment, which the caller has marked as being made.
    fn make(&self, number: u64) -> MutexGuard<'_, Chores> {
        let made = Segment::create(&*self.disk, number, self.sectors);
        let mut chores = self.chores();
        chores.next = match made {
            Ok(segment) => {
                chores.trouble = None;
                Next::Ready(segment)
            }
            Err(error) => {
                let why = error.while_it_is_tried_again();
                tracing::warn!("failed to make the next segment of the log, trying again: {why}");
                chores.trouble = Some(error);
                Next::Failed { number }
            }
        };
        self.changed.notify_all();
        chores
    }

    /// Hands out segment `number` with at least so many sectors, and has the one after it made.
    pub(crate) fn next_segment(&self, number: u64, sectors_min: u32) -> Result<Segment, LogError> {
        let mut chores = self.chores();
        while matches!(chores.next, Next::InMaking) {
            chores = self.changed.wait(chores).unwrap_or_else(PoisonError::into_inner);
        }
        let ready = std::mem::replace(&mut chores.next, Next::InMaking);
        drop(chores);
        let segment = self.fitting(ready, number, sectors_min);
        let mut chores = self.chores();
        chores.trouble = segment.as_ref().err().cloned();
        chores.next = match &segment {
            Ok(_) => Next::Wanted { number: number + 1 },
            Err(_) => Next::Failed { number },
        };
        drop(chores);
        self.changed.notify_all();
        segment
    }

    fn fitting(&self, ready: Next, number: u64, sectors_min: u32) -> Result<Segment, LogError> {
        if let Next::Ready(segment) = ready {
            if segment.number == number && segment.sectors >= sectors_min {
                return Ok(segment);
            }
            // An entry larger than a segment gets one of its own size. The number must stay free of gaps, so
            // the one that was ready makes way.
            self.remove_file(segment.number)?;
        }
        Segment::create(&*self.disk, number, self.sectors.max(sectors_min))
    }

    /// Has segments deleted, the oldest first.
    pub(crate) fn remove(&self, numbers: Vec<u64>) {
        if numbers.is_empty() {
            return;
        }
        let mut chores = self.chores();
        chores.remove.extend(numbers);
        chores.remove_again = true;
        if chores.ahead {
            self.changed.notify_all();
        } else {
            drop(self.remove_all(chores));
        }
    }

    /// Ends [`Housekeeper::run`].
    pub(crate) fn stop(&self) {
        self.chores().stop = true;
        self.changed.notify_all();
    }

    /// The housekeeping thread.
    pub(crate) fn run(&self) {
        let mut chores = self.chores();
        loop {
            if chores.remove_again {
                chores = self.remove_all(chores);
            } else if chores.stop {
                return;
            } else if let Next::Wanted { number } = chores.next {
                chores.next = Next::InMaking;
                drop(chores);
                chores = self.make(number);
            } else if let Next::Failed { number } = chores.next {
                let (woken, timeout) =
                    self.changed.wait_timeout(chores, RETRY).unwrap_or_else(PoisonError::into_inner);
                chores = woken;
                if timeout.timed_out() && matches!(chores.next, Next::Failed { .. }) {
                    chores.next = Next::Wanted { number };
                }
            } else {
                chores = self.changed.wait(chores).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn remove_all<'a>(&'a self, mut chores: MutexGuard<'a, Chores>) -> MutexGuard<'a, Chores> {
        chores.remove_again = false;
        while let Some(number) = chores.remove.front().copied() {
            drop(chores);
            let removed = self.remove_file(number);
            chores = self.chores();
            match removed {
                Ok(()) => drop(chores.remove.pop_front()),
                Err(error) => {
                    tracing::warn!(%error, "a segment that is no longer needed can't be deleted yet");
                    return chores;
                }
            }
        }
        chores
    }

    fn remove_file(&self, number: u64) -> Result<(), LogError> {
        let name = segment::name(number);
        // One sync for each file: otherwise a crash could keep an older one and lose a newer one.
        match self.disk.remove(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.disk.sync_folder(),
        }
        .map_err(|e| LogError::disk("delete", &self.disk.folder(), &name, e))
    }

    /// The housekeeping thread has panicked: the writer must not wait for it.
    pub(crate) fn abandon(&self) {
        let mut chores = self.chores();
        chores.ahead = false;
        chores.next = Next::Failed { number: 0 };
        chores.trouble = Some(LogError::Panicked);
        self.changed.notify_all();
    }

    fn chores(&self) -> MutexGuard<'_, Chores> {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
