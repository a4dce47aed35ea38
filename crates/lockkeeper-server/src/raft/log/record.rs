//! The record: one change to the log. A frame holds one or more, each as kind (u8), length (u32), postcard.
//! The sectors carry the checksums (see `sector`), which cover the header of a record as well as its payload.

use serde::{Deserialize, Serialize};

use super::error::LogError;
use super::sector::array;
use crate::raft::encoded_batch;
use crate::raft::types::{Entry, LogId, Vote};

const HEADER_BYTES: usize = 5;
/// Maximum payload of one record. The proposer's limits are far below.
pub(crate) const RECORD_BYTES_MAX: usize = 1 << 30;

const CHECKPOINT: u8 = 1;
const ENTRY: u8 = 2;
const VOTE: u8 = 3;
const TRUNCATE_AFTER: u8 = 4;
const PURGE: u8 = 5;
const COMMITTED: u8 = 6;

/// A change to the log.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    /// The metadata that results from all earlier records. First in each segment, so that earlier segments can be deleted.
    Checkpoint(LogMeta),
    /// An entry.
    Entry(Entry),
    /// A vote.
    Vote(Vote),
    /// All entries after this one are discarded.
    TruncateAfter(Option<LogId>),
    /// All entries up to and including this one are in a snapshot.
    Purge(LogId),
    /// The entries up to and including this one are committed. A hint, written with the next frame.
    Committed(Option<LogId>),
}

impl Record {
    /// Appends the record to `out`, and returns the length of its payload, which comes last.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<usize, LogError> {
        match self {
            Record::Checkpoint(meta) => encode(out, CHECKPOINT, meta),
            Record::Entry(entry) => encode_entry(entry, out),
            Record::Vote(vote) => encode(out, VOTE, vote),
            Record::TruncateAfter(last) => encode(out, TRUNCATE_AFTER, last),
            Record::Purge(upto) => encode(out, PURGE, upto),
            Record::Committed(upto) => encode(out, COMMITTED, upto),
        }
    }

    /// Decodes the record at `offset` of a frame's records. Returns it with the range of its payload.
    pub(crate) fn decode(records: &[u8], offset: usize) -> Result<(Record, std::ops::Range<usize>), String> {
        let start = offset + HEADER_BYTES;
        if start > records.len() {
            return Err("a record ends within its header".to_owned());
        }
        let length = u32::from_le_bytes(array(records, offset + 1)) as usize;
        let end = start.checked_add(length).filter(|end| *end <= records.len());
        let end = end.ok_or_else(|| format!("a record of {length} bytes extends beyond its frame"))?;
        let payload = &records[start..end];
        let record = match records[offset] {
            CHECKPOINT => decode(payload).map(Record::Checkpoint),
            ENTRY => decode_entry(payload).map(Record::Entry),
            VOTE => decode(payload).map(Record::Vote),
            TRUNCATE_AFTER => decode(payload).map(Record::TruncateAfter),
            PURGE => decode(payload).map(Record::Purge),
            COMMITTED => decode(payload).map(Record::Committed),
            kind => return Err(format!("a record has the unknown kind {kind}")),
        }?;
        Ok((record, start..end))
    }
}

/// Appends an entry as a record, and returns the length of its payload, which comes last.
pub(crate) fn encode_entry(entry: &Entry, out: &mut Vec<u8>) -> Result<usize, LogError> {
    framed(out, ENTRY, |out| encoded_batch::put_entry(entry, out))
}

/// Decodes the payload of an entry.
pub(crate) fn decode_entry(payload: &[u8]) -> Result<Entry, String> {
    complete(encoded_batch::take_entry(payload))
}

fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, String> {
    complete(postcard::take_from_bytes(payload))
}

/// Rejects trailing bytes.
fn complete<T>(taken: postcard::Result<(T, &[u8])>) -> Result<T, String> {
    match taken {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("a record has {} trailing bytes", rest.len())),
        Err(error) => Err(format!("a record can't be decoded: {error}")),
    }
}

fn encode<T: Serialize>(out: &mut Vec<u8>, kind: u8, value: &T) -> Result<usize, LogError> {
    // postcard extends a vector in place, without a copy.
    framed(out, kind, |out| postcard::to_extend(value, out))
}

fn framed(
    out: &mut Vec<u8>,
    kind: u8,
    put: impl FnOnce(Vec<u8>) -> postcard::Result<Vec<u8>>,
) -> Result<usize, LogError> {
    let start = out.len();
    out.push(kind);
    out.extend_from_slice(&[0; 4]);
    let mut encoded = put(std::mem::take(out)).map_err(LogError::Encoding)?;
    std::mem::swap(out, &mut encoded);
    let length = out.len() - start - HEADER_BYTES;
    if length > RECORD_BYTES_MAX {
        return Err(LogError::TooLarge { bytes: length, bytes_max: RECORD_BYTES_MAX });
    }
    out[start + 1..start + HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(length)
}

/// Metadata of the log: what results from all records, except the entries themselves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LogMeta {
    pub(crate) vote: Option<Vote>,
    pub(crate) purged: Option<LogId>,
    pub(crate) committed: Option<LogId>,
    /// The last entry, or the last purged one if there is none.
    pub(crate) last: Option<LogId>,
}

impl LogMeta {
    pub(crate) fn purged_index(&self) -> Option<u64> {
        self.purged.as_ref().map(|id| id.index)
    }

    pub(crate) fn last_index(&self) -> Option<u64> {
        self.last.as_ref().map(|id| id.index)
    }

    /// Reports whether an entry with this index may come next. A log that never had an entry may start at any index.
    pub(crate) fn may_follow(&self, index: u64) -> bool {
        self.last_index().is_none_or(|last| last.checked_add(1) == Some(index))
    }

    /// Applies an append.
    pub(crate) fn append(&mut self, last: LogId) {
        self.last = Some(last);
    }

    /// Applies a truncation.
    pub(crate) fn truncate_after(&mut self, last: &Option<LogId>) {
        let keep = last.as_ref().map(|id| id.index);
        if keep < self.last_index() {
            self.last = if keep < self.purged_index() { self.purged } else { *last };
        }
    }

    /// Applies a purge.
    pub(crate) fn purge(&mut self, upto: &LogId) {
        if Some(upto.index) > self.purged_index() {
            self.purged = Some(*upto);
        }
        if self.last_index() < self.purged_index() {
            self.last = self.purged;
        }
    }
}
