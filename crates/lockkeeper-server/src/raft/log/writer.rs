//! The writer: puts what is queued into one frame, writes it, and makes it durable with one fdatasync.

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
use super::record::{RECORD_BYTES_MAX, Record, Standing};
use super::sector::Place;
use super::segment::{self, FIRST_SECTOR, Segment};
use crate::raft::types::{LogId, TypeConfig, Vote};

/// Window of the moving average of sync times, in syncs.
const AVERAGED_OVER: u32 = 8;

/// Something to be written.
pub(crate) struct Operation {
    /// The encoded records.
    pub(crate) records: Vec<u8>,
    pub(crate) change: Change,
    pub(crate) done: Done,
}

/// What an operation changes, for the standing at the start of the next segment.
pub(crate) enum Change {
    Append { ticket: u64, first: u64, last: LogId, payloads: Vec<std::ops::Range<u32>> },
    Vote(Vote),
    TruncateAfter(Option<LogId>),
    Purge(LogId),
    Committed(Option<LogId>),
}

/// Whom to tell when an operation is durable.
pub(crate) enum Done {
    Nobody,
    Raft(IOFlushed<TypeConfig>),
    Waiter(oneshot::Sender<Result<(), LogError>>),
}

impl Done {
    pub(crate) fn complete(self, result: Result<(), LogError>) {
        match self {
            Done::Nobody => {}
            Done::Raft(callback) => callback.io_completed(result.map_err(Into::into)),
            // Whoever waited may have been dropped; the record is durable all the same.
            Done::Waiter(waiter) => drop(waiter.send(result)),
        }
    }
}

/// Why a commit failed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// There is no room for the next segment. Nothing was written: the same commit can be tried again.
    NoRoom(LogError),
    /// Nobody knows what is on the disk: the writer must not be used again.
    Failed(LogError),
}

impl From<LogError> for CommitError {
    fn from(error: LogError) -> CommitError {
        CommitError::Failed(error)
    }
}

/// What a commit did.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// Ticket, first index and places, for each append.
    pub(crate) located: Vec<(u64, u64, Vec<Location>)>,
    /// The segment that was begun.
    pub(crate) begun: Option<Segment>,
    /// Segments that nobody needs any more, the oldest first.
    pub(crate) freed: Vec<u64>,
}

/// A segment that is full.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) number: u64,
    /// The highest index it ever held.
    pub(crate) index_max: Option<u64>,
}

/// The end of the log. Whoever holds it writes.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) housekeeper: Arc<Housekeeper>,
    pub(crate) segment: Segment,
    /// The next sector to write. Invariant: it and all after it are zero on the disk, durably.
    pub(crate) sector: u32,
    /// The number of the next frame.
    pub(crate) frame: u64,
    /// What the records on the disk add up to.
    pub(crate) standing: Standing,
    /// The highest index in the current segment.
    pub(crate) index_max: Option<u64>,
    pub(crate) closed: VecDeque<Closed>,
    pub(crate) payload: Vec<u8>,
    pub(crate) sectors: Vec<u8>,
    /// How long each fdatasync took.
    pub(crate) sync_seconds: Histogram,
    /// A moving average of the same.
    pub(crate) sync_average: Duration,
}

impl Writer {
    /// Writes the operations as one frame. When it returns, they are durable.
    pub(crate) fn commit(&mut self, operations: &[Operation]) -> Result<Committed, CommitError> {
        let mut committed = Committed::default();
        let record_bytes = operations.iter().map(|operation| operation.records.len()).sum();
        if !self.fits(record_bytes)? {
            if self.sector == FIRST_SECTOR {
                // The very first entry is larger than the first segment. A segment without a frame in the
                // middle of the log would look like a loss, so it gets its standing.
                self.commit(&[])?;
            }
            committed.begun = Some(self.roll(record_bytes)?);
        }
        self.payload.clear();
        self.payload.resize(LENGTH_BYTES, 0);
        if self.sector == FIRST_SECTOR {
            Record::Standing(self.standing.clone()).encode(&mut self.payload)?;
        }
        for operation in operations {
            let base = self.payload.len() - LENGTH_BYTES;
            self.payload.extend_from_slice(&operation.records);
            self.take_in(operation, base, &mut committed);
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

    /// Whether these operations need the next segment, and it is not there yet.
    pub(crate) fn waits_for_segment(&self, operations: &[Operation]) -> bool {
        let record_bytes = operations.iter().map(|operation| operation.records.len()).sum();
        !self.fits(record_bytes).unwrap_or(true) && !self.housekeeper.has_next()
    }

    /// How many bytes can still be written into the current segment.
    pub(crate) fn bytes_left(&self) -> u64 {
        (self.segment.sectors - self.sector) as u64 * SECTOR_BYTES as u64
    }

    fn take_in(&mut self, operation: &Operation, base: usize, committed: &mut Committed) {
        match &operation.change {
            Change::Append { ticket, first, last, payloads } => {
                let locations = payloads.iter().map(|payload| Location {
                    segment: self.segment.number,
                    sector: self.sector,
                    offset: base as u32 + payload.start,
                    bytes: payload.end - payload.start,
                });
                committed.located.push((*ticket, *first, locations.collect()));
                self.standing.append(*last);
                self.index_max = self.index_max.max(Some(last.index));
            }
            Change::Vote(vote) => self.standing.vote = Some(*vote),
            Change::TruncateAfter(last) => self.standing.truncate_after(last),
            Change::Purge(upto) => self.standing.purge(upto),
            Change::Committed(upto) => self.standing.committed = *upto,
        }
    }

    /// Whether these records fit into the current segment.
    fn fits(&self, record_bytes: usize) -> Result<bool, LogError> {
        let standing_bytes = if self.sector == FIRST_SECTOR { self.standing_bytes()? } else { 0 };
        let sectors = frame::sectors_for(record_bytes + standing_bytes);
        Ok(self.sector as u64 + sectors <= self.segment.sectors as u64)
    }

    fn standing_bytes(&self) -> Result<usize, LogError> {
        let mut standing = Vec::new();
        Record::Standing(self.standing.clone()).encode(&mut standing)?;
        Ok(standing.len())
    }

    /// Goes on to the next segment, which has room for these records and the standing.
    fn roll(&mut self, record_bytes: usize) -> Result<Segment, CommitError> {
        let sectors = FIRST_SECTOR as u64 + frame::sectors_for(record_bytes + self.standing_bytes()?);
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

    /// The oldest segments whose entries are all purged. The purge record is durable by now.
    pub(crate) fn free(&mut self) -> Vec<u64> {
        let purged = self.standing.purged_index();
        let mut freed = Vec::new();
        while self.closed.front().is_some_and(|closed| closed.index_max <= purged) {
            freed.extend(self.closed.pop_front().map(|closed| closed.number));
        }
        freed
    }

    /// One large frame must not keep its buffers for ever.
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
