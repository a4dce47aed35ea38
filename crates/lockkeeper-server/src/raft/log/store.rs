//! The log behind openraft's storage traits.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use lockkeeper_core::mutation::{self, Mutation};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::oneshot;

use super::entries::EntrySource;
use super::error::LogError;
use super::frame;
use super::housekeeper::Space;
use super::record::{Record, decode_entry, encode_entry};
use super::segment;
use super::shared::{Room, Shared};
use super::writer::{Change, Completion, Operation};
use crate::raft::types::{Entry, LogId, TypeConfig, Vote};

/// Maximum size of the queue: beyond it an append waits (S11). Far above what openraft keeps in flight.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Maximum size of one result of `limited_get_log_entries`, unless its first entry alone is larger.
const READ_BYTES_MAX: usize = 4 << 20;

/// The log. Clones share it. When the last clone and the last reader are dropped, the queue is written and the
/// threads end.
#[derive(Debug, Clone)]
pub struct LogStore {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
    sync_seconds: Histogram,
}

/// Weak handle that reports the free space of a log without keeping it open.
#[derive(Debug, Clone)]
pub(crate) struct SpaceWatch {
    shared: Weak<Shared>,
}

impl SpaceWatch {
    /// Returns the space for further entries. `None` if the log is closed.
    pub(crate) fn space(&self) -> Option<Space> {
        self.shared.upgrade().map(|shared| shared.space())
    }

    /// See [`LogStore::room_for`].
    pub(crate) fn room_for(&self, unqueued: usize, bytes: usize) -> Room {
        self.shared.upgrade().map_or(Room::Yes, |shared| shared.room_for(unqueued, bytes))
    }
}

/// Reader of the log. It sees appended entries at once, before they are durable.
#[derive(Debug, Clone)]
pub struct LogReader {
    shared: Arc<Shared>,
    _threads: Arc<Threads>,
}

/// Threads of the log. They end when the last handle is dropped.
#[derive(Debug)]
struct Threads {
    shared: Arc<Shared>,
    running: Vec<JoinHandle<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.running.drain(..) {
            // The thread itself has reported a panic.
            thread.join().ok();
        }
        if !self.shared.threaded {
            self.shared.drain();
        }
    }
}

impl LogStore {
    /// Starts the threads of the log.
    pub(crate) fn start(
        shared: Shared,
        prepare_ahead: bool,
        sync_seconds: Histogram,
    ) -> Result<LogStore, LogError> {
        let shared = Arc::new(shared);
        let mut threads = Threads { shared: Arc::clone(&shared), running: Vec::new() };
        let failed = |folder: &str, e| LogError::disk("start a thread for", folder, "", e);
        if shared.threaded {
            let shared = Arc::clone(&shared);
            let folder = shared.folder.clone();
            let run = move || {
                if catch_unwind(AssertUnwindSafe(|| shared.run())).is_err() {
                    shared.fail(Vec::new(), LogError::Panicked);
                }
            };
            let thread = std::thread::Builder::new().name("lockkeeper-log".to_owned()).spawn(run);
            threads.running.push(thread.map_err(|e| failed(&folder, e))?);
        }
        if prepare_ahead {
            shared.housekeeper.enable_thread();
            let housekeeper = Arc::clone(&shared.housekeeper);
            let run = move || {
                if catch_unwind(AssertUnwindSafe(|| housekeeper.run())).is_err() {
                    housekeeper.abandon();
                }
            };
            // Linux limits thread names to 15 characters.
            let thread = std::thread::Builder::new().name("lockkeeper-segs".to_owned()).spawn(run);
            threads.running.push(thread.map_err(|e| failed(&shared.folder, e))?);
        }
        Ok(LogStore { shared, threads: Arc::new(threads), sync_seconds })
    }

    /// Returns the space for further entries. Check it before proposing: a log without space acknowledges nothing
    /// until there is some.
    pub fn space(&self) -> Space {
        self.shared.space()
    }

    /// Reports whether this many bytes of entries can be written without waiting for disk space, behind `unqueued` bytes
    /// that were accepted before. An append without this check can block this node's votes behind entries that wait.
    pub fn room_for(&self, unqueued: usize, bytes: usize) -> Room {
        self.shared.room_for(unqueued, bytes)
    }

    /// Waits until another attempt to create the next segment has ended. For one task only.
    pub(crate) async fn segment_attempted(&self) {
        self.shared.housekeeper.attempted.notified().await;
    }

    /// Keeps space for this many bytes of entries, so that they can be written although the disk is full. The space is
    /// prepared in the background, if the log has a thread for that.
    pub fn keep_for_entries(&self, bytes: u64) {
        self.shared.keep_for_entries(bytes);
    }

    /// Returns the log bytes of so many entries with one releasing command each, whose names have `name_bytes` together.
    pub(crate) fn bytes_for_lone_commands(commands: u64, name_bytes: u64) -> u64 {
        frame::bytes_for_lone_commands(commands, name_bytes)
    }

    /// Returns a weak handle for tasks that may outlive the node.
    pub(crate) fn space_watch(&self) -> SpaceWatch {
        SpaceWatch { shared: Arc::downgrade(&self.shared) }
    }

    /// Returns the last vote of this node.
    pub fn vote(&self) -> io::Result<Option<Vote>> {
        self.shared.vote()
    }

    /// Returns the histogram of fdatasync durations.
    pub fn sync_seconds(&self) -> Histogram {
        self.sync_seconds.clone()
    }

    /// Chooses whether the log's thread writes, or the caller. Only with [`super::SyncMode::Adaptive`].
    pub fn use_log_thread(&self, enabled: bool) {
        self.shared.use_log_thread(enabled);
    }

    /// Returns the error that stopped the log, if there is one.
    pub fn failure(&self) -> Option<LogError> {
        self.shared.view().failure.clone()
    }

    /// Reports whether all files of the log still exist. A purge removes a file from the view before it deletes it.
    pub(crate) fn has_files(&self) -> bool {
        self.shared.view().files.values().all(|file| file.has_name().unwrap_or(false))
    }

    /// Creates a reader.
    pub fn reader(&self) -> LogReader {
        LogReader { shared: Arc::clone(&self.shared), _threads: Arc::clone(&self.threads) }
    }

    /// Queues an append as operations that each fit into a frame. Only the last one completes the callback.
    fn push_entries(&self, entries: Vec<Entry>, callback: IOFlushed<TypeConfig>) -> Result<(), LogError> {
        // Encoding is expensive, so it happens before the lock is taken.
        let mut operations: Vec<(Operation, Vec<(Entry, usize)>)> = Vec::new();
        for entry in entries {
            let log_id = entry.log_id;
            if operations.last().is_none_or(|(op, _)| op.records.len() >= self.shared.frame_bytes_max) {
                let change =
                    Change::Append { ticket: 0, first: log_id.index, last: log_id, payloads: Vec::new() };
                operations
                    .push((Operation { records: Vec::new(), change, done: Completion::Ignored }, Vec::new()));
            }
            let Some((operation, taken)) = operations.last_mut() else { continue };
            let bytes = encode_entry(&entry, &mut operation.records)?;
            let end = operation.records.len();
            if let Change::Append { last, payloads, .. } = &mut operation.change {
                *last = log_id;
                payloads.push((end - bytes) as u32..end as u32);
            }
            taken.push((entry, bytes));
        }

        let mut view = self.shared.view();
        view.check()?;
        // All or nothing: a gap is found before anything is queued.
        let mut meta = view.meta.clone();
        for (entry, _) in operations.iter().flat_map(|(_, entries)| entries) {
            if !meta.may_follow(entry.log_id.index) {
                let last = meta.last_index().map_or("none".to_owned(), |last| last.to_string());
                return Err(LogError::Hole { last, found: entry.log_id.index });
            }
            meta.append(entry.log_id);
        }
        view.meta = meta;
        let Some((last, _)) = operations.last_mut() else {
            // Nothing to append: the callback completes after all earlier operations.
            let change = Change::Committed(view.meta.committed);
            view.push(Operation { records: Vec::new(), change, done: Completion::Raft(callback) });
            self.shared.flush(view);
            return Ok(());
        };
        last.done = Completion::Raft(callback);
        for (mut operation, entries) in operations {
            let number = view.ticket();
            if let Change::Append { ticket, .. } = &mut operation.change {
                *ticket = number;
            }
            for (entry, bytes) in entries {
                view.entries.push(entry, bytes, number, None);
            }
            view.push(operation);
        }
        self.shared.flush(view);
        Ok(())
    }

    /// Queues a record that is not an entry. With `flush` it is written as soon as possible, otherwise with the
    /// next frame.
    fn push(&self, record: Record, change: Change, done: Completion, flush: bool) -> Result<(), LogError> {
        let mut records = Vec::new();
        record.encode(&mut records)?;
        let mut view = self.shared.view();
        view.check()?;
        match &change {
            Change::Append { .. } => {}
            Change::Vote(vote) => view.meta.vote = Some(*vote),
            Change::TruncateAfter(last) => {
                view.meta.truncate_after(last);
                let last = view.meta.last_index();
                view.entries.truncate_after(last);
            }
            Change::Purge(upto) => {
                view.meta.purge(upto);
                view.entries.purge(upto.index);
            }
            Change::Committed(upto) => view.meta.committed = *upto,
        }
        view.push(Operation { records, change, done });
        if flush {
            self.shared.flush(view);
        }
        Ok(())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let view = self.shared.view();
        view.check()?;
        Ok(LogState { last_purged_log_id: view.meta.purged, last_log_id: view.meta.last })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader()
    }

    /// Durable on return.
    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        if mutation::is_on(Mutation::VoteInMemory) {
            return Ok(());
        }
        let (done, durable) = oneshot::channel();
        self.push(Record::Vote(*vote), Change::Vote(*vote), Completion::Waiter(done), true)?;
        match durable.await {
            Ok(result) => Ok(result?),
            Err(_) => Err(LogError::Panicked.into()),
        }
    }

    /// A hint that speeds up the next start. It is written with the next frame.
    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.push(Record::Committed(committed), Change::Committed(committed), Completion::Ignored, false)?;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let view = self.shared.view();
        view.check()?;
        Ok(view.meta.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        loop {
            // Registers before the check, so that no wake-up is missed.
            let drained = self.shared.drained.notified();
            if self.shared.view().queued_bytes < QUEUE_BYTES_MAX {
                break;
            }
            drained.await;
        }
        self.push_entries(entries, callback)?;
        Ok(())
    }

    /// Not durable on return, and need not be: the next append follows it on disk, and until then the old entries
    /// remain unacknowledged.
    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let record = Record::TruncateAfter(last_log_id);
        self.push(record, Change::TruncateAfter(last_log_id), Completion::Ignored, false)?;
        Ok(())
    }

    /// The files are deleted after the record is durable.
    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.push(Record::Purge(upto), Change::Purge(upto), Completion::Ignored, true)?;
        Ok(())
    }
}

impl LogReader {
    /// Reads those of the entries `start..end` that are present, up to `bytes_max` but at least one.
    fn read(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, LogError> {
        let mut found = Vec::new();
        let mut files = Vec::new();
        {
            // The locations are collected under one lock, so that the result is a consistent view. They stay valid
            // afterwards: no location is written twice, and an open file outlives its name.
            let view = self.shared.view();
            view.check()?;
            let (first, after) = view.entries.bounds();
            let mut bytes = 0usize;
            for index in start.max(first)..end.min(after) {
                bytes = bytes.saturating_add(view.entries.bytes(index).unwrap_or_default());
                if bytes > bytes_max && !found.is_empty() {
                    break;
                }
                let Some(entry) = view.entries.get(index) else { break };
                files.push(match &entry {
                    EntrySource::Memory(_) => None,
                    EntrySource::Disk(location) => view.files.get(&location.segment).cloned(),
                });
                found.push(entry);
            }
        }
        found.into_iter().zip(files).map(|(entry, file)| self.fetch(entry, file)).collect()
    }

    fn fetch(
        &self,
        found: EntrySource,
        file: Option<Arc<dyn super::disk::DiskFile>>,
    ) -> Result<Entry, LogError> {
        let location = match found {
            EntrySource::Memory(entry) => return Ok(entry),
            EntrySource::Disk(location) => location,
        };
        let name = segment::name(location.segment);
        let damaged = |what| LogError::Damaged {
            file: format!("{}/{name}", self.shared.folder),
            offset: location.sector as u64 * super::disk::SECTOR_BYTES as u64,
            what,
        };
        let file = file.ok_or_else(|| damaged("the segment of an entry is not open".to_owned()))?;
        decode_entry(&location.read(&*file, &self.shared.folder, &name)?).map_err(damaged)
    }
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.read(start, end, usize::MAX)?)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let entries = self.read(start, end, READ_BYTES_MAX)?;
        // A replication was planned before a purge, and the remaining entries do not follow those it has sent. With
        // nothing to send, openraft sends an empty message, and `network/client.rs` ends the stream.
        let follows = entries.first().is_none_or(|first| first.log_id.index == start);
        Ok(if follows { entries } else { Vec::new() })
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        self.shared.vote()
    }
}
