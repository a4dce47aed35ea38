//! The writer: combines queued operations into one frame, writes it, and makes it durable with one fdatasync.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::mutation::{self, Mutation};
use openraft::storage::IOFlushed;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::oneshot;

use super::disk::{Disk, SECTOR_BYTES};
use super::error::LogError;
use super::frame::{self, LENGTH_BYTES, Location};
use super::housekeeper::Housekeeper;
use super::record::{LogMeta, RECORD_BYTES_MAX, Record};
use super::sector::Place;
use super::segment::{self, FIRST_SECTOR, Segment};
use crate::raft::types::{LogId, TypeConfig, Vote};

/// Window of the moving average of sync times, in syncs.
const AVERAGED_OVER: u32 = 8;

/// Records to be written, and the change that they describe.
pub(crate) struct Operation {
    /// The encoded records.
    pub(crate) records: Vec<u8>,
    pub(crate) change: Change,
    pub(crate) done: Completion,
}

/// Change made by an operation. Applied to the metadata that the next segment starts with.
pub(crate) enum Change {
    Append { ticket: u64, first: u64, last: LogId, payloads: Vec<std::ops::Range<u32>> },
    Vote(Vote),
    TruncateAfter(Option<LogId>),
    Purge(LogId),
    Committed(Option<LogId>),
}

/// Receiver of the result when an operation is durable.
pub(crate) enum Completion {
    Ignored,
    Raft(IOFlushed<TypeConfig>),
    Waiter(oneshot::Sender<Result<(), LogError>>),
}

impl Completion {
    pub(crate) fn complete(self, result: Result<(), LogError>) {
        match self {
            Completion::Ignored => {}
            Completion::Raft(callback) => callback.io_completed(result.map_err(Into::into)),
            // The receiver may have been dropped; the record is durable anyway.
            Completion::Waiter(waiter) => drop(waiter.send(result)),
        }
    }
}

/// Reason why a commit failed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// No space for the next segment. Nothing was written, and the same commit can be retried.
    NoRoom(LogError),
    /// The state of the disk is unknown. The writer must not be used again.
    Failed(LogError),
}

impl From<LogError> for CommitError {
    fn from(error: LogError) -> CommitError {
        CommitError::Failed(error)
    }
}

/// Result of a commit.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// Ticket, first index and locations of each append.
    pub(crate) located: Vec<(u64, u64, Vec<Location>)>,
    /// The new segment, if the commit started one.
    pub(crate) new_segment: Option<Segment>,
    /// Segments that can be deleted, oldest first.
    pub(crate) freed: Vec<u64>,
}

/// A segment that is full.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) number: u64,
    /// Highest index that it ever held.
    pub(crate) index_max: Option<u64>,
}

/// Writer at the end of the log. Its mutex serializes all writes.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) housekeeper: Arc<Housekeeper>,
    pub(crate) segment: Segment,
    /// The next sector to write. Invariant: it and all later sectors of the segment are durably zero.
    pub(crate) sector: u32,
    /// Number of the next frame.
    pub(crate) frame: u64,
    /// Metadata that results from the records on disk.
    pub(crate) meta: LogMeta,
    /// Highest index in the current segment.
    pub(crate) index_max: Option<u64>,
    pub(crate) closed: VecDeque<Closed>,
    pub(crate) payload: Vec<u8>,
    pub(crate) sectors: Vec<u8>,
    /// Histogram of fdatasync durations.
    pub(crate) sync_seconds: Histogram,
    /// Moving average of fdatasync durations.
    pub(crate) sync_average: Duration,
}

impl Writer {
    /// Writes the operations as one frame. They are durable on return.
    pub(crate) fn commit(&mut self, operations: &[Operation]) -> Result<Committed, CommitError> {
        let mut committed = Committed::default();
        let record_bytes = operations.iter().map(|operation| operation.records.len()).sum();
        if !self.fits(record_bytes)? {
            if self.sector == FIRST_SECTOR {
                // The first entry is larger than the first segment. A segment without frames in the middle of the
                // log would look like lost data, so it gets a checkpoint.
                self.commit(&[])?;
            }
            committed.new_segment = Some(self.roll(record_bytes)?);
        }
        self.payload.clear();
        self.payload.resize(LENGTH_BYTES, 0);
        if self.sector == FIRST_SECTOR {
            Record::Checkpoint(self.meta.clone()).encode(&mut self.payload)?;
        }
        for operation in operations {
            let base = self.payload.len() - LENGTH_BYTES;
            self.payload.extend_from_slice(&operation.records);
            self.apply(operation, base, &mut committed);
        }

        let first = Place { segment: self.segment.number, sector: self.sector };
        frame::seal(&mut self.sectors, first, self.frame, &mut self.payload);
        let offset = self.sector as u64 * SECTOR_BYTES as u64;
        self.segment.file.write_at(&self.sectors, offset).map_err(|e| self.failed("write", e))?;
        let began = Instant::now();
        if !mutation::is_on(Mutation::AcknowledgeBeforeSync) {
            self.segment.file.sync().map_err(|e| self.failed("sync", e))?;
        }
        let took = began.elapsed();
        self.sync_seconds.observe(took.as_secs_f64());
        self.sync_average = (self.sync_average * (AVERAGED_OVER - 1) + took) / AVERAGED_OVER;
        self.sector += (self.sectors.len() / SECTOR_BYTES) as u32;
        self.frame += 1;

        if operations.iter().any(|operation| matches!(operation.change, Change::Purge(_))) {
            committed.freed = self.free();
        }
        self.shrink();
        Ok(committed)
    }

    /// Reports whether these operations need the next segment and it is not ready.
    pub(crate) fn waits_for_segment(&self, operations: &[Operation]) -> bool {
        let record_bytes = operations.iter().map(|operation| operation.records.len()).sum();
        !self.fits(record_bytes).unwrap_or(true) && !self.housekeeper.has_next()
    }

    /// Returns the space left in the current segment.
    pub(crate) fn bytes_left(&self) -> u64 {
        (self.segment.sectors - self.sector) as u64 * SECTOR_BYTES as u64
    }

    fn apply(&mut self, operation: &Operation, base: usize, committed: &mut Committed) {
        match &operation.change {
            Change::Append { ticket, first, last, payloads } => {
                let locations = payloads.iter().map(|payload| Location {
                    segment: self.segment.number,
                    sector: self.sector,
                    offset: base as u32 + payload.start,
                    bytes: payload.end - payload.start,
                });
                committed.located.push((*ticket, *first, locations.collect()));
                self.meta.append(*last);
                self.index_max = self.index_max.max(Some(last.index));
            }
            Change::Vote(vote) => self.meta.vote = Some(*vote),
            Change::TruncateAfter(last) => self.meta.truncate_after(last),
            Change::Purge(upto) => self.meta.purge(upto),
            Change::Committed(upto) => self.meta.committed = *upto,
        }
    }

    /// Reports whether these records fit into the current segment.
    fn fits(&self, record_bytes: usize) -> Result<bool, LogError> {
        let checkpoint_bytes = if self.sector == FIRST_SECTOR { self.checkpoint_bytes()? } else { 0 };
        let sectors = frame::sectors_for(record_bytes + checkpoint_bytes);
        Ok(self.sector as u64 + sectors <= self.segment.sectors as u64)
    }

    fn checkpoint_bytes(&self) -> Result<usize, LogError> {
        let mut checkpoint = Vec::new();
        Record::Checkpoint(self.meta.clone()).encode(&mut checkpoint)?;
        Ok(checkpoint.len())
    }

    /// Switches to the next segment, which has room for these records and a checkpoint.
    fn roll(&mut self, record_bytes: usize) -> Result<Segment, CommitError> {
        let sectors = FIRST_SECTOR as u64 + frame::sectors_for(record_bytes + self.checkpoint_bytes()?);
        let sectors = u32::try_from(sectors)
            .map_err(|_| LogError::TooLarge { bytes: record_bytes, bytes_max: RECORD_BYTES_MAX })?;
        let next =
            self.housekeeper.next_segment(self.segment.number + 1, sectors).map_err(|error| match error {
                LogError::NoSpace { .. } => CommitError::NoRoom(error),
                other => CommitError::Failed(other),
            })?;
        let full = std::mem::replace(&mut self.segment, next);
        self.closed.push_back(Closed { number: full.number, index_max: self.index_max.take() });
        self.sector = FIRST_SECTOR;
        Ok(self.segment.clone())
    }

    /// Removes the oldest segments whose entries are all purged from `closed` and returns their numbers. The purge
    /// record is already durable.
    pub(crate) fn free(&mut self) -> Vec<u64> {
        let purged = self.meta.purged_index();
        let mut freed = Vec::new();
        while self.closed.front().is_some_and(|closed| closed.index_max <= purged) {
            freed.extend(self.closed.pop_front().map(|closed| closed.number));
        }
        freed
    }

    /// Releases the memory of a large frame.
    fn shrink(&mut self) {
        const KEEP_BYTES: usize = 1 << 20;
        self.payload.clear();
        self.sectors.clear();
        self.payload.shrink_to(KEEP_BYTES);
        self.sectors.shrink_to(KEEP_BYTES);
    }

    fn failed(&self, action: &'static str, error: std::io::Error) -> LogError {
        LogError::disk(action, &self.disk.folder(), &segment::name(self.segment.number), error)
    }
}
