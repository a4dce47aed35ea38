//! State shared by the store, its readers and the log's thread: the log as callers see it, the queue, the writer.
//!
//! Callers see an operation as soon as it is queued, before it is written. Operations are written and completed in
//! the order of the queue.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};
use tokio::sync::Notify;

use super::SyncMode;
use super::disk::{Disk, DiskFile, SECTOR_BYTES};
use super::entries::Entries;
use super::error::LogError;
use super::frame;
use super::housekeeper::{Housekeeper, Readiness, Space};
use super::record::LogMeta;
use super::writer::{Change, CommitError, Committed, Completion, Operation, Writer};
use crate::raft::types::Vote;

/// A disk whose average sync takes longer than `SLOW` is slow, until the average falls below `FAST_AGAIN`. A slow disk is
/// written by the thread, which costs a wake-up of 40 to 50 us for each sync.
const SLOW: Duration = Duration::from_millis(1);
const FAST_AGAIN: Duration = Duration::from_micros(500);
/// Fraction of a segment that is reserved for votes and purges.
const RESERVED_PART: u64 = 16;
/// Minimum of that reserve. A vote takes a sector.
const RESERVED_BYTES_MIN: u64 = 2 * SECTOR_BYTES as u64;
/// Fraction of a segment that is kept in addition to what is asked for: what is asked for may grow while a segment is
/// created.
const HEADROOM_PART: u64 = 2;
/// Retry interval of a log that is full.
const RETRY: Duration = Duration::from_millis(250);

/// Whether the writing thread may wait until the next segment is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MayWait {
    Yes,
    No,
}

/// Whether there is space for further entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// There is.
    Yes,
    /// There will be when the next segment is created: see [`LogStore::segment_attempted`](super::LogStore).
    Soon,
    /// The next segment could not be created: most likely the disk is full.
    No,
}

/// How much of the queue was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// All of it, or the log has failed.
    All,
    /// The rest waits for the next segment, which is being created.
    MustWait,
    /// The rest waits for disk space.
    NoRoom,
}

/// Shared state of the log. Lock order: `writer` before `view`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) folder: String,
    disk: Arc<dyn Disk>,
    pub(crate) housekeeper: Arc<Housekeeper>,
    view: Mutex<View>,
    writer: Mutex<Writer>,
    /// Signals that an urgent operation was queued, or that the log stops.
    wake: Condvar,
    /// Signals that the queue has become shorter.
    pub(crate) drained: Notify,
    current_bytes: AtomicU64,
    pub(crate) frame_bytes_max: usize,
    /// Reserved for votes and purges while there is no next segment.
    reserved_bytes: u64,
    segment_bytes: u64,
    /// As it was last passed to the housekeeper.
    spares_wanted: AtomicU64,
    /// Whether the log has a thread that can write.
    pub(crate) threaded: bool,
    /// Whether the thread writes; otherwise the caller does.
    by_thread: AtomicBool,
    /// Whether the disk is so slow that the thread writes in any case.
    is_slow: AtomicBool,
    /// In a simulation: whether a task is scheduled to write.
    is_scheduled: AtomicBool,
}

/// The log as callers see it, including what is queued.
pub(crate) struct View {
    pub(crate) meta: LogMeta,
    pub(crate) entries: Entries,
    /// Files from which entries may be read.
    pub(crate) files: BTreeMap<u64, Arc<dyn DiskFile>>,
    queue: VecDeque<Operation>,
    pub(crate) queued_bytes: usize,
    urgent: bool,
    stop: bool,
    tickets: u64,
    /// Why the queue waits: there is no disk space for the next segment.
    pub(crate) no_room: Option<LogError>,
    /// The first error. Invariant: once it is set, it stays, and nothing more is written or acknowledged.
    pub(crate) failure: Option<LogError>,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("meta", &self.meta).field("failure", &self.failure).finish()
    }
}

impl View {
    pub(crate) fn new(meta: LogMeta, entries: Entries, files: BTreeMap<u64, Arc<dyn DiskFile>>) -> View {
        View {
            meta,
            entries,
            files,
            queue: VecDeque::new(),
            queued_bytes: 0,
            urgent: false,
            stop: false,
            tickets: 0,
            no_room: None,
            failure: None,
        }
    }

    /// Returns the error of a failed log.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub(crate) fn push(&mut self, operation: Operation) {
        // A newer hint replaces an older one, so that hints never fill the queue.
        let hint = |operation: &Operation| {
            matches!((&operation.change, &operation.done), (Change::Committed(_), Completion::Ignored))
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

    /// Undoes [`View::take`].
    fn put_back(&mut self, operations: Vec<Operation>) {
        for operation in operations.into_iter().rev() {
            self.queue.push_front(operation);
        }
    }

    /// Takes everything that is queued, up to the size of a frame.
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
    pub(crate) fn new(
        view: View,
        writer: Writer,
        segment_bytes: u64,
        frame_bytes_max: usize,
        sync: SyncMode,
    ) -> Shared {
        let reserved_bytes = (segment_bytes / RESERVED_PART).max(RESERVED_BYTES_MIN);
        Shared {
            folder: writer.disk.folder(),
            disk: Arc::clone(&writer.disk),
            housekeeper: Arc::clone(&writer.housekeeper),
            view: Mutex::new(view),
            current_bytes: AtomicU64::new(writer.bytes_left()),
            writer: Mutex::new(writer),
            wake: Condvar::new(),
            drained: Notify::new(),
            frame_bytes_max,
            reserved_bytes,
            segment_bytes,
            spares_wanted: AtomicU64::new(0),
            threaded: sync != SyncMode::Inline,
            by_thread: AtomicBool::new(sync == SyncMode::Thread),
            is_slow: AtomicBool::new(false),
            is_scheduled: AtomicBool::new(false),
        }
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last vote of this node.
    pub(crate) fn vote(&self) -> io::Result<Option<Vote>> {
        let view = self.view();
        view.check()?;
        Ok(view.meta.vote)
    }

    pub(crate) fn space(&self) -> Space {
        self.housekeeper.space(self.current_bytes.load(Ordering::Relaxed), self.reserved_bytes)
    }

    /// Keeps space for this many bytes of entries even if the disk is full, as far as there is a thread that prepares it.
    pub(crate) fn keep_for_entries(&self, bytes: u64) {
        let segment_bytes = self.segment_bytes;
        let wanted = (bytes + segment_bytes / HEADROOM_PART + self.reserved_bytes).div_ceil(segment_bytes);
        // The next segment is not a spare.
        let spares = wanted.saturating_sub(1);
        if self.spares_wanted.swap(spares, Ordering::Relaxed) != spares {
            self.housekeeper.keep_spares(spares as usize);
        }
        // Without a thread there is at least a next segment.
        let is_low = self.current_bytes.load(Ordering::Relaxed) < bytes + self.reserved_bytes;
        if is_low && !self.housekeeper.works_ahead() {
            self.housekeeper.ensure_next();
        }
    }

    /// Reports whether this many bytes of entries, and votes behind them, can be written without waiting for disk space.
    /// `unqueued` is the size of entries that were accepted before and may not be in the queue yet.
    ///
    /// The queue is written in order, because openraft takes a saved vote as proof that the entries before it are durable.
    /// So a vote behind entries that wait for space would wait too, and block elections for as long as the disk is full.
    pub(crate) fn room_for(&self, unqueued: usize, bytes: usize) -> Room {
        let (queued, operations) = {
            let view = self.view();
            (view.queued_bytes, view.queue.len())
        };
        let sectors = frame::sectors_for(unqueued.max(queued) + bytes) + operations as u64;
        let needed = sectors * SECTOR_BYTES as u64 + self.reserved_bytes;
        if needed <= self.current_bytes.load(Ordering::Relaxed) {
            return Room::Yes;
        }
        match self.housekeeper.ensure_next() {
            Readiness::Ready => Room::Yes,
            Readiness::Pending => Room::Soon,
            Readiness::Failed => Room::No,
        }
    }

    /// Writes the queue, or has the thread write it. Operations that arrive during a sync are queued, and the next sync covers
    /// all of them.
    pub(crate) fn flush<'a>(self: &'a Arc<Self>, mut view: MutexGuard<'a, View>) {
        if !self.threaded {
            drop(view);
            return self.drain_without_thread();
        }
        let by_thread = self.by_thread.load(Ordering::Relaxed) || self.is_slow.load(Ordering::Relaxed);
        if !by_thread && view.no_room.is_none() {
            drop(view);
            match self.writer.try_lock() {
                Ok(writer) => {
                    if self.drain_with(writer, MayWait::No) == Drained::All {
                        return;
                    }
                }
                Err(TryLockError::Poisoned(_)) => return self.fail(Vec::new(), LogError::Panicked),
                Err(TryLockError::WouldBlock) => {}
            }
            view = self.view();
        }
        view.urgent = true;
        drop(view);
        self.wake.notify_one();
    }

    /// Writes at once, or later if a simulated disk is slow or full.
    fn drain_without_thread(self: &Arc<Self>) {
        let pause = match self.view().no_room {
            Some(_) => RETRY,
            None => self.disk.sync_pause(),
        };
        if !pause.is_zero() {
            self.drain_after(pause);
        } else if self.drain() == Drained::NoRoom {
            self.drain_after(RETRY);
        }
    }

    fn drain_after(self: &Arc<Self>, pause: Duration) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.drain();
            return;
        };
        if self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(self);
        runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            shared.is_scheduled.store(false, Ordering::Relaxed);
            if shared.drain() == Drained::NoRoom && !shared.view().stop {
                shared.drain_after(RETRY);
            }
        });
    }

    /// Chooses whether the thread writes, if there is one, or the caller. Both take from the front of the queue and
    /// never at the same time, so the order is kept.
    pub(crate) fn use_log_thread(&self, enabled: bool) {
        self.by_thread.store(enabled && self.threaded, Ordering::Relaxed);
    }

    /// Writes the whole queue.
    pub(crate) fn drain(&self) -> Drained {
        match self.writer.lock() {
            Ok(writer) => self.drain_with(writer, MayWait::Yes),
            Err(_) => {
                self.fail(Vec::new(), LogError::Panicked);
                Drained::All
            }
        }
    }

    /// Writes the queue. All modes write through here.
    fn drain_with(&self, mut writer: MutexGuard<'_, Writer>, may_wait: MayWait) -> Drained {
        loop {
            let operations = {
                let mut view = self.view();
                if let Some(failure) = view.failure.clone() {
                    drop(view);
                    self.fail(Vec::new(), failure);
                    return Drained::All;
                }
                view.take(self.frame_bytes_max)
            };
            if operations.is_empty() {
                return Drained::All;
            }
            if may_wait == MayWait::No && writer.waits_for_segment(&operations) {
                self.view().put_back(operations);
                return Drained::MustWait;
            }
            let committed = match writer.commit(&operations) {
                Ok(committed) => committed,
                Err(CommitError::NoRoom(error)) => {
                    self.wait_for_room(operations, error);
                    return Drained::NoRoom;
                }
                Err(CommitError::Failed(error)) => {
                    self.fail(operations, error);
                    return Drained::All;
                }
            };
            self.note_speed(writer.sync_average);
            self.complete(operations, committed, writer.bytes_left());
        }
    }

    /// Completes the operations of a commit. Called under the writer's lock, so that they complete in the order of the
    /// frames.
    fn complete(&self, operations: Vec<Operation>, committed: Committed, bytes_left: u64) {
        self.current_bytes.store(bytes_left, Ordering::Relaxed);
        let mut view = self.view();
        let written: usize = operations.iter().map(|operation| operation.records.len()).sum();
        view.queued_bytes = view.queued_bytes.saturating_sub(written);
        if let Some(segment) = committed.new_segment {
            view.files.insert(segment.number, segment.file);
        }
        for (ticket, first, locations) in committed.located {
            view.entries.locate(ticket, first, &locations);
        }
        for number in &committed.freed {
            view.files.remove(number);
        }
        let had_no_room = view.no_room.take().is_some();
        drop(view);
        if had_no_room {
            tracing::info!(folder = self.folder, "the log has disk space again: writes resume");
        }
        operations.into_iter().for_each(|operation| operation.done.complete(Ok(())));
        self.drained.notify_waiters();
        self.housekeeper.remove(committed.freed);
    }

    /// Puts the operations back into the queue. They are retried until there is space, and nothing is acknowledged
    /// meanwhile.
    fn wait_for_room(&self, operations: Vec<Operation>, error: LogError) {
        if mutation::is_on(Mutation::AcknowledgeWithoutRoom) {
            return operations.into_iter().for_each(|operation| operation.done.complete(Ok(())));
        }
        let mut view = self.view();
        view.put_back(operations);
        if view.no_room.is_none() {
            let why = error.retry_message();
            tracing::error!("the log is full, writes are not acknowledged: {why}");
        }
        view.no_room = Some(error);
    }

    /// Leaves a slow disk to the thread, so that it does not block the caller.
    fn note_speed(&self, average: Duration) {
        let bound = if self.is_slow.load(Ordering::Relaxed) { FAST_AGAIN } else { SLOW };
        self.is_slow.store(average > bound, Ordering::Relaxed);
    }

    /// Stops the log: keeps the first error and completes all operations with it.
    pub(crate) fn fail(&self, operations: Vec<Operation>, error: LogError) {
        let (failure, queue) = {
            let mut view = self.view();
            if view.failure.is_none() {
                tracing::error!(%error, "the log has failed and accepts no more writes");
            }
            let failure = view.failure.get_or_insert(error).clone();
            view.queued_bytes = 0;
            view.no_room = None;
            (failure, std::mem::take(&mut view.queue))
        };
        for operation in operations.into_iter().chain(queue) {
            operation.done.complete(Err(failure.clone()));
        }
        self.drained.notify_waiters();
    }

    /// Runs the log's thread.
    pub(crate) fn run(&self) {
        loop {
            let mut view = self.view();
            while !view.urgent && !view.stop {
                view = self.wake.wait(view).unwrap_or_else(PoisonError::into_inner);
            }
            let stop = view.stop;
            drop(view);
            let drained = self.drain();
            if stop {
                return;
            }
            if drained == Drained::NoRoom {
                let waited = self.wake.wait_timeout_while(self.view(), RETRY, |view| !view.stop);
                waited.unwrap_or_else(PoisonError::into_inner).0.urgent = true;
            }
        }
    }

    /// Ends [`Shared::run`] after the queue is written.
    pub(crate) fn stop(&self) {
        self.view().stop = true;
        self.wake.notify_one();
        self.housekeeper.stop();
    }
}
