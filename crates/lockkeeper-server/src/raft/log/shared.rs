//! What the store, its readers and the log's thread share: the log as callers see it, the queue, the writer.
//!
//! Callers see an operation from the moment it is queued; the disk sees it when it is its turn. The order of
//! the queue is the order on the disk and the order of the answers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::SyncMode;
use super::disk::DiskFile;
use super::entries::Entries;
use super::error::LogError;
use super::housekeeper::{Housekeeper, Space};
use super::record::Standing;
use super::writer::{Change, Done, Operation, Writer};
use crate::raft::types::Vote;

/// Lock order: `writer` before `view`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) folder: String,
    pub(crate) housekeeper: Arc<Housekeeper>,
    view: Mutex<View>,
    writer: Mutex<Writer>,
    /// Something urgent was queued, or the log shall end.
    wake: Condvar,
    /// The queue got shorter.
    pub(crate) drained: Notify,
    current_bytes: AtomicU64,
    pub(crate) frame_bytes_max: usize,
    /// Whether there is a thread that can write.
    pub(crate) threaded: bool,
    /// Whether it does; otherwise the caller writes.
    beside: AtomicBool,
}

/// The log as callers see it, what is queued included.
pub(crate) struct View {
    pub(crate) standing: Standing,
    pub(crate) entries: Entries,
    /// The files that entries may be read from.
    pub(crate) files: BTreeMap<u64, Arc<dyn DiskFile>>,
    queue: VecDeque<Operation>,
    pub(crate) queued_bytes: usize,
    urgent: bool,
    stop: bool,
    tickets: u64,
    /// The first error. Invariant: once set it stays, nothing is written and nothing acknowledged any more.
    pub(crate) failure: Option<LogError>,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("standing", &self.standing).field("failure", &self.failure).finish()
    }
}

impl View {
    pub(crate) fn new(standing: Standing, entries: Entries, files: BTreeMap<u64, Arc<dyn DiskFile>>) -> View {
        View {
            standing,
            entries,
            files,
            queue: VecDeque::new(),
            queued_bytes: 0,
            urgent: false,
            stop: false,
            tickets: 0,
            failure: None,
        }
    }

    /// Fails if the log has failed.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub(crate) fn push(&mut self, operation: Operation) {
        // A newer hint replaces an older one, so that hints alone never fill the queue.
        let hint = |operation: &Operation| {
            matches!((&operation.change, &operation.done), (Change::Committed(_), Done::Nobody))
        };
        if hint(&operation)
            && self.queue.back().is_some_and(hint)
            && let Some(older) = self.queue.pop_back()
        {
            self.queued_bytes -= older.records.len();
        }
        self.queued_bytes += operation.records.len();
        self.queue.push_back(operation);
    }

    /// All that is queued, but not more than a frame should hold.
    fn take(&mut self, frame_bytes_max: usize) -> Vec<Operation> {
        let mut taken = Vec::with_capacity(self.queue.len());
        let mut bytes = 0;
        while let Some(operation) = self.queue.front() {
            bytes += operation.records.len();
            if bytes > frame_bytes_max && !taken.is_empty() {
                return taken;
            }
            taken.extend(self.queue.pop_front());
        }
        self.urgent = false;
        taken
    }
}

impl Shared {
    pub(crate) fn new(view: View, writer: Writer, frame_bytes_max: usize, sync: SyncMode) -> Shared {
        Shared {
            folder: writer.disk.folder(),
            housekeeper: Arc::clone(&writer.housekeeper),
            view: Mutex::new(view),
            current_bytes: AtomicU64::new(writer.bytes_left()),
            writer: Mutex::new(writer),
            wake: Condvar::new(),
            drained: Notify::new(),
            frame_bytes_max,
            threaded: sync != SyncMode::Inline,
            beside: AtomicBool::new(sync == SyncMode::Thread),
        }
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vote that this node has given last.
    pub(crate) fn vote(&self) -> io::Result<Option<Vote>> {
        let view = self.view();
        view.check()?;
        Ok(view.standing.vote)
    }

    pub(crate) fn space(&self) -> Space {
        self.housekeeper.space(self.current_bytes.load(Ordering::Relaxed))
    }

    /// Has everything in the queue written: by the thread, or here and now.
    pub(crate) fn flush(&self, mut view: MutexGuard<'_, View>) {
        if self.beside.load(Ordering::Relaxed) {
            view.urgent = true;
            drop(view);
            self.wake.notify_one();
        } else {
            drop(view);
            self.drain();
        }
    }

    /// From now on the thread writes, if there is one, or the caller. Both take the queue from its front, one at
    /// a time, so the order stays.
    pub(crate) fn work_beside(&self, beside: bool) {
        self.beside.store(beside && self.threaded, Ordering::Relaxed);
    }

    /// Writes all that is queued. The only way to the disk, in both modes.
    pub(crate) fn drain(&self) {
        let Ok(mut writer) = self.writer.lock() else {
            return self.fail(Vec::new(), LogError::Panicked);
        };
        loop {
            let operations = {
                let mut view = self.view();
                if let Some(failure) = view.failure.clone() {
                    drop(view);
                    return self.fail(Vec::new(), failure);
                }
                view.take(self.frame_bytes_max)
            };
            if operations.is_empty() {
                return;
            }
            let committed = match writer.commit(&operations) {
                Ok(committed) => committed,
                Err(error) => return self.fail(operations, error),
            };
            self.current_bytes.store(writer.bytes_left(), Ordering::Relaxed);
            let mut view = self.view();
            let written: usize = operations.iter().map(|operation| operation.records.len()).sum();
            view.queued_bytes = view.queued_bytes.saturating_sub(written);
            if let Some(segment) = committed.begun {
                view.files.insert(segment.number, segment.file);
            }
            for (ticket, first, locations) in committed.located {
                view.entries.locate(ticket, first, &locations);
            }
            for number in &committed.freed {
                view.files.remove(number);
            }
            drop(view);
            // Within the writer's lock, so that the answers keep the order of the frames.
            operations.into_iter().for_each(|operation| operation.done.complete(Ok(())));
            self.drained.notify_waiters();
            self.housekeeper.remove(committed.freed);
        }
    }

    /// The log is over: keeps the first error, and gives it to all who wait.
    pub(crate) fn fail(&self, operations: Vec<Operation>, error: LogError) {
        let (failure, queue) = {
            let mut view = self.view();
            if view.failure.is_none() {
                tracing::error!(%error, "the log has failed and takes no more writes");
            }
            let failure = view.failure.get_or_insert(error).clone();
            view.queued_bytes = 0;
            (failure, std::mem::take(&mut view.queue))
        };
        for operation in operations.into_iter().chain(queue) {
            operation.done.complete(Err(failure.clone()));
        }
        self.drained.notify_waiters();
    }

    /// The log's thread.
    pub(crate) fn run(&self) {
        loop {
            let mut view = self.view();
            while !view.urgent && !view.stop {
                view = self.wake.wait(view).unwrap_or_else(PoisonError::into_inner);
            }
            let stop = view.stop;
            drop(view);
            self.drain();
            if stop {
                return;
            }
        }
    }

    /// Ends [`Shared::run`] after what is queued.
    pub(crate) fn stop(&self) {
        self.view().stop = true;
        self.wake.notify_one();
        self.housekeeper.stop();
    }
}
