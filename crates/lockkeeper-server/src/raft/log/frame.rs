//! The frame: one group commit. It fills whole sectors, none of which was ever written before, and is
//! followed by one fdatasync.
//!
//! Invariant: no sector of frame n + 1 is written before the fdatasync of frame n has returned without error.
//! So any part of frame n + 1 on the disk proves that frame n was durable, and only the last frame of a log
//! can be torn. Nothing in a frame is acknowledged before all of it is durable, so a torn frame is removed as a whole.

use super::disk::{DiskFile, SECTOR_BYTES};
use super::error::LogError;
use super::sector::{self, Header, PAYLOAD_BYTES, Place, SectorState};

/// Size of the length field in front of the records (u32, in bytes).
pub(crate) const LENGTH_BYTES: usize = 4;

/// Returns the number of sectors of a frame with this many bytes of records.
pub(crate) fn sectors_for(record_bytes: usize) -> u64 {
    (record_bytes + LENGTH_BYTES).div_ceil(PAYLOAD_BYTES) as u64
}

/// Upper bound of what the frame of an entry with one command contains beside the command's names: the headers of the
/// records, the IDs, the times and numbers, and the hint of the commit index.
const LONE_COMMAND_BYTES: usize = 160;
/// Longest names of a command that fits into one sector. With the longest names it takes two.
const ONE_SECTOR_NAME_BYTES: u64 = (PAYLOAD_BYTES - LENGTH_BYTES - LONE_COMMAND_BYTES) as u64;

/// Returns the log bytes of so many entries with one command each, whose names have `name_bytes` together: one or two
/// sectors each.
pub(crate) fn bytes_for_lone_commands(commands: u64, name_bytes: u64) -> u64 {
    let two_sectors = (name_bytes / ONE_SECTOR_NAME_BYTES).min(commands);
    (commands + two_sectors) * SECTOR_BYTES as u64
}

/// Encodes a frame into `out`. `payload` starts with [`LENGTH_BYTES`] that are filled in here.
pub(crate) fn seal(out: &mut Vec<u8>, first: Place, frame: u64, payload: &mut [u8]) {
    let record_bytes = (payload.len() - LENGTH_BYTES) as u32;
    payload[..LENGTH_BYTES].copy_from_slice(&record_bytes.to_le_bytes());
    let parts = payload.len().div_ceil(PAYLOAD_BYTES) as u32;
    out.clear();
    out.reserve(parts as usize * SECTOR_BYTES);
    for (part, chunk) in (0..parts).zip(payload.chunks(PAYLOAD_BYTES)) {
        let place = Place { sector: first.sector + part, ..first };
        sector::seal(out, place, Header { frame, part, parts }, chunk);
    }
}

/// Returns the records of a frame whose sectors are all complete. `None` if its length field is invalid.
pub(crate) fn records(sectors: &[u8]) -> Option<Vec<u8>> {
    let mut payload: Vec<u8> = sectors
        .chunks_exact(SECTOR_BYTES)
        .flat_map(|sector| sector::payload(sector).iter().copied())
        .collect();
    let length = u32::from_le_bytes(sector::array(&payload, 0)) as usize;
    let parts = sectors.len() / SECTOR_BYTES;
    if length > payload.len() - LENGTH_BYTES || sectors_for(length) != parts as u64 {
        return None;
    }
    payload.truncate(LENGTH_BYTES + length);
    payload.drain(..LENGTH_BYTES);
    Some(payload)
}

/// Location of one record's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: u64,
    /// The first sector of its frame.
    pub(crate) sector: u32,
    /// Offset of the first byte from the start of the frame's records.
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

impl Location {
    /// Reads the payload and verifies every sector.
    pub(crate) fn read(&self, file: &dyn DiskFile, folder: &str, name: &str) -> Result<Vec<u8>, LogError> {
        let start = self.offset as usize + LENGTH_BYTES;
        let end = start + self.bytes as usize;
        let parts = start / PAYLOAD_BYTES..end.div_ceil(PAYLOAD_BYTES).max(start / PAYLOAD_BYTES + 1);
        let mut sectors = vec![0; parts.len() * SECTOR_BYTES];
        let from = (self.sector as u64 + parts.start as u64) * SECTOR_BYTES as u64;
        file.read_at(&mut sectors, from).map_err(|e| LogError::disk("read", folder, name, e))?;

        let mut payload = Vec::with_capacity(parts.len() * PAYLOAD_BYTES);
        for (part, bytes) in parts.clone().zip(sectors.chunks_exact(SECTOR_BYTES)) {
            let place = Place { segment: self.segment, sector: self.sector + part as u32 };
            match sector::inspect(place, bytes) {
                SectorState::Whole(header) if header.part == part as u32 => {
                    payload.extend_from_slice(sector::payload(bytes))
                }
                _ => {
                    return Err(LogError::Damaged {
                        file: format!("{folder}/{name}"),
                        offset: place.sector as u64 * SECTOR_BYTES as u64,
                        what: "an entry that was verified earlier can't be read back".to_owned(),
                    });
                }
            }
        }
        let skip = start - parts.start * PAYLOAD_BYTES;
        Ok(payload[skip..skip + self.bytes as usize].to_vec())
    }
}
