//! Recovery: reads every segment, verifies everything, and finds the end of the log.
//!
//! **What may be truncated.** Only the last frame can be torn (see `frame`), and a torn frame was never
//! acknowledged. A frame that fails verification counts as torn only with proof:
//! - one of its own sectors was never written, or only partly (see `sector`), and
//! - no sector of any other frame follows it, in this segment or a later one: the next frame is written
//!   only after this one is durable.
//!
//! Anything else means that data was changed after it was written, perhaps after it was acknowledged:
//! the node stops (S10). The counter-example to "truncate what fails its checksum": a node votes, a bit flips in the
//! last sector of the vote, the node restarts, forgets the vote, and votes again in the same term.
//!
//! **Data that can be read need not be on disk.** If a process dies between write and fdatasync, or fdatasync
//! fails, the next process reads the frame from the page cache. So the last frame is written again with the same
//! bytes, and synced, before it is used. Earlier frames are durable, or the last one would not exist.

use std::collections::VecDeque;
use std::ops::Range;

use super::disk::{Disk, SECTOR_BYTES};
use super::entries::Entries;
use super::error::LogError;
use super::frame::{self, Location};
use super::record::{LogMeta, Record};
use super::sector::{self, Place, SectorState};
use super::segment::{self, FIRST_SECTOR, Segment};
use super::writer::Closed;

/// Result of the recovery.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) meta: LogMeta,
    pub(crate) entries: Entries,
    /// Full segments, oldest first.
    pub(crate) closed: VecDeque<Closed>,
    /// All segments that hold frames, with their open files.
    pub(crate) segments: Vec<Segment>,
    pub(crate) index_max: Option<u64>,
    /// The next sector to write in the last of `segments`.
    pub(crate) sector: u32,
    /// Number of the next frame.
    pub(crate) frame: u64,
    /// The segment after the last one, if it was created ahead of time.
    pub(crate) next: Option<Segment>,
    pub(crate) bytes: u64,
    pub(crate) bytes_cut: u64,
}

/// Reads the whole folder. Its only write is the repair of the tail.
pub(crate) fn recover(disk: &dyn Disk, cache_bytes: usize) -> Result<Recovered, LogError> {
    let folder = disk.folder();
    let failed = |e| LogError::disk("read", &folder, "", e);
    let mut numbers: Vec<u64> =
        disk.list().map_err(failed)?.iter().filter_map(|n| segment::number_of(n)).collect();
    numbers.sort_unstable();

    let mut scan = Scan::new(disk, cache_bytes);
    for (at, number) in numbers.iter().enumerate() {
        if at > 0 && numbers[at - 1] + 1 != *number {
            let what = format!("segment {} is missing", numbers[at - 1] + 1);
            return Err(scan.damaged(*number, 0, what));
        }
        scan.segment(Segment::open(disk, *number)?)?;
    }
    scan.finish(numbers.first().copied())
}

struct Scan<'a> {
    disk: &'a dyn Disk,
    found: Recovered,
    /// Segments without frames, after all others.
    unused: Vec<Segment>,
    /// Last index of the entries that, by the first checkpoint, were in earlier segments. They must be purged or truncated.
    missing_through: Option<u64>,
    /// The torn frame: its segment and sectors.
    torn: Option<(Segment, Range<u32>)>,
    /// The last complete frame: its segment, first sector and bytes.
    last: Option<(Segment, u32, Vec<u8>)>,
}

impl<'a> Scan<'a> {
    fn new(disk: &'a dyn Disk, cache_bytes: usize) -> Scan<'a> {
        let found = Recovered {
            meta: LogMeta::default(),
            entries: Entries::new(cache_bytes),
            closed: VecDeque::new(),
            segments: Vec::new(),
            index_max: None,
            sector: FIRST_SECTOR,
            frame: 0,
            next: None,
            bytes: 0,
            bytes_cut: 0,
        };
        Scan { disk, found, unused: Vec::new(), missing_through: None, torn: None, last: None }
    }

    fn segment(&mut self, segment: Segment) -> Result<(), LogError> {
        let name = segment::name(segment.number);
        let mut bytes = vec![0; segment.sectors as usize * SECTOR_BYTES];
        let read = segment.file.read_at(&mut bytes, 0);
        read.map_err(|e| LogError::disk("read", &self.disk.folder(), &name, e))?;

        let mut sector = FIRST_SECTOR;
        while let Some(parts) = self.whole_frame(&segment, &bytes, sector)? {
            self.frame(&segment, &bytes, sector, parts)?;
            sector += parts;
        }
        if sector > FIRST_SECTOR {
            self.found.sector = sector;
        } else {
            self.unused.push(segment.clone());
        }
        self.tail(&segment, &bytes, sector)
    }

    /// Returns the number of sectors of the next frame if it is present and complete.
    fn whole_frame(&mut self, segment: &Segment, bytes: &[u8], first: u32) -> Result<Option<u32>, LogError> {
        let Some(SectorState::Whole(header)) =
            (first < segment.sectors).then(|| inspect(segment, bytes, first))
        else {
            return Ok(None);
        };
        if self.found.frame == 0 {
            // The frames of earlier segments, if there were any, were deleted by a purge.
            self.found.frame = if segment.number == 1 { 1 } else { header.frame };
        }
        let fits =
            header.part == 0 && header.parts <= segment.sectors - first && header.frame == self.found.frame;
        let whole = fits
            && (1..header.parts).all(|part| {
                let expected = sector::Header { part, ..header };
                inspect(segment, bytes, first + part) == SectorState::Whole(expected)
            });
        Ok(whole.then_some(header.parts))
    }

    fn frame(&mut self, segment: &Segment, bytes: &[u8], first: u32, parts: u32) -> Result<(), LogError> {
        let number = segment.number;
        if self.torn.is_some() {
            return Err(self.damaged(number, first, "there are frames after a torn one".to_owned()));
        }
        if let Some(unused) = self.unused.first() {
            let what = format!("there are frames after segment {}, which has none", unused.number);
            return Err(self.damaged(number, first, what));
        }
        let sectors = &bytes[range(first..first + parts)];
        let records = frame::records(sectors)
            .ok_or_else(|| self.damaged(number, first, "the length of a frame is invalid".to_owned()))?;
        if first == FIRST_SECTOR
            && let Some(full) = self.found.segments.last()
        {
            let index_max = self.found.index_max.take();
            self.found.closed.push_back(Closed { number: full.number, index_max });
        }
        if first == FIRST_SECTOR {
            self.found.segments.push(segment.clone());
        }
        let mut offset = 0;
        while offset < records.len() {
            let wrong = |what| self.damaged(number, first, what);
            let (record, payload) =
                Record::decode(&records, offset).map_err(|what| self.newer(number, first, what))?;
            let is_checkpoint = matches!(record, Record::Checkpoint(_));
            if is_checkpoint != (first == FIRST_SECTOR && offset == 0) {
                return Err(wrong(
                    "a checkpoint is missing at the start of the segment, or is elsewhere".to_owned(),
                ));
            }
            offset = payload.end;
            let location = Location {
                segment: number,
                sector: first,
                offset: payload.start as u32,
                bytes: payload.len() as u32,
            };
            self.record(record, location).map_err(|what| self.damaged(number, first, what))?;
        }
        self.found.bytes += records.len() as u64;
        self.found.frame += 1;
        self.last = Some((segment.clone(), first, sectors.to_vec()));
        Ok(())
    }

    fn record(&mut self, record: Record, location: Location) -> Result<(), String> {
        let Recovered { meta, entries, index_max, segments, .. } = &mut self.found;
        match record {
            Record::Checkpoint(start) if segments.len() == 1 => {
                if start.last_index() > start.purged_index() {
                    self.missing_through = start.last_index();
                }
                *meta = start;
            }
            Record::Checkpoint(start) if start != *meta => {
                return Err(format!(
                    "the earlier segments end at {meta:?}, but the checkpoint of this one is {start:?}"
                ));
            }
            Record::Checkpoint(_) => {}
            Record::Entry(entry) => {
                let index = entry.log_id.index;
                if !meta.may_follow(index) {
                    return Err(format!("entry {index} follows entry {:?}", meta.last_index()));
                }
                meta.append(entry.log_id);
                *index_max = (*index_max).max(Some(index));
                entries.push(entry, location.bytes as usize, 0, Some(location));
            }
            Record::Vote(vote) => meta.vote = Some(vote),
            Record::TruncateAfter(last) => {
                meta.truncate_after(&last);
                entries.truncate_after(meta.last_index());
                self.missing_through = self.missing_through.min(meta.last_index());
            }
            Record::Purge(upto) => {
                meta.purge(&upto);
                entries.purge(upto.index);
            }
            Record::Committed(upto) => meta.committed = upto,
        }
        Ok(())
    }

    /// Checks the sectors after the last complete frame of a segment.
    fn tail(&mut self, segment: &Segment, bytes: &[u8], first: u32) -> Result<(), LogError> {
        let sectors: Vec<(u32, SectorState)> = (first..segment.sectors)
            .map(|at| (at, inspect(segment, bytes, at)))
            .filter(|(_, found)| *found != SectorState::Zero)
            .collect();
        let (Some((begin, _)), Some((end, _))) = (sectors.first().copied(), sectors.last().copied()) else {
            return Ok(());
        };
        if self.torn.is_some() || (first == FIRST_SECTOR && self.unused.len() > 1) {
            return Err(self.damaged(
                segment.number,
                begin,
                "there is data after the end of the log".to_owned(),
            ));
        }
        let expected = self.found.frame.max(1);
        let mut parts = None;
        for (at, found) in &sectors {
            let SectorState::Whole(header) = found else { continue };
            let own = header.frame == expected
                && header.part.checked_add(first) == Some(*at)
                && header.parts <= segment.sectors - first
                && parts.is_none_or(|parts| parts == header.parts);
            if !own {
                let what = format!(
                    "frame {expected} is damaged or missing, but it was durable, because sector {at} of this file \
                     belongs to frame {}",
                    header.frame
                );
                return Err(self.damaged(segment.number, first, what));
            }
            parts = Some(header.parts);
        }
        let unwritten =
            |at: u32| matches!(inspect(segment, bytes, at), SectorState::Zero | SectorState::Unfinished);
        let torn = match parts {
            // Its size is known: one of its sectors is not written, and nothing follows it.
            Some(parts) => (first..first + parts).any(unwritten) && end < first + parts,
            // Its size is unknown. The first sector is not written, and none is complete.
            None => unwritten(first) && sectors.iter().all(|(_, found)| *found == SectorState::Unfinished),
        };
        if !torn {
            let what = format!(
                "frame {expected} fails its checksum although all of it was written: it is not a torn write, and it \
                 may have been acknowledged"
            );
            return Err(self.damaged(segment.number, begin, what));
        }
        self.torn = Some((segment.clone(), begin..end + 1));
        Ok(())
    }

    fn finish(mut self, first_number: Option<u64>) -> Result<Recovered, LogError> {
        let found = &self.found;
        if let (Some(number), true) = (first_number, found.segments.is_empty())
            && number > 1
        {
            return Err(self.damaged(number, FIRST_SECTOR, "the earlier segments are missing".to_owned()));
        }
        if self.missing_through > found.meta.purged_index() {
            let number = first_number.unwrap_or_default();
            let what = format!(
                "the earlier segments are missing: they held the entries {} to {}",
                found.meta.purged_index().map_or(0, |purged| purged + 1),
                self.missing_through.unwrap_or_default()
            );
            return Err(self.damaged(number, FIRST_SECTOR, what));
        }
        self.repair()?;
        if self.found.segments.is_empty() {
            // A log that was created and never written to.
            self.found.segments.extend(self.unused.drain(..).next());
        }
        self.found.next = self.unused.into_iter().next();
        self.found.frame = self.found.frame.max(1);
        Ok(self.found)
    }

    /// Zeroes the torn frame and makes the last complete one durable.
    ///
    /// A crash meanwhile does no harm: a torn frame with more zeros in it is still torn, and the last frame is
    /// overwritten with the same bytes, except for marks that were torn.
    fn repair(&mut self) -> Result<(), LogError> {
        let folder = self.disk.folder();
        let write = |segment: &Segment, sector: u32, bytes: &[u8]| {
            let name = segment::name(segment.number);
            let offset = sector as u64 * SECTOR_BYTES as u64;
            let written = segment.file.write_at(bytes, offset).and_then(|()| segment.file.sync());
            written.map_err(|e| LogError::disk("repair", &folder, &name, e))
        };
        if let Some((segment, sectors)) = self.torn.take() {
            let zeros = vec![0; sectors.len() * SECTOR_BYTES];
            self.found.bytes_cut = zeros.len() as u64;
            tracing::warn!(
                segment = segment.number,
                sector = sectors.start,
                bytes = zeros.len(),
                "removed a torn write from the end of the log: it was never acknowledged"
            );
            write(&segment, sectors.start, &zeros)?;
        }
        if let Some((segment, sector, mut bytes)) = self.last.take() {
            bytes.chunks_exact_mut(SECTOR_BYTES).for_each(sector::restore_marks);
            write(&segment, sector, &bytes)?;
        }
        Ok(())
    }

    /// Returns the error for a record that can't be read although its checksum is valid.
    fn newer(&self, number: u64, sector: u32, what: String) -> LogError {
        LogError::Newer {
            file: format!("{}/{}", self.disk.folder(), segment::name(number)),
            offset: sector as u64 * SECTOR_BYTES as u64,
            what,
        }
    }

    fn damaged(&self, number: u64, sector: u32, what: String) -> LogError {
        LogError::Damaged {
            file: format!("{}/{}", self.disk.folder(), segment::name(number)),
            offset: sector as u64 * SECTOR_BYTES as u64,
            what,
        }
    }
}

fn inspect(segment: &Segment, bytes: &[u8], sector: u32) -> SectorState {
    let place = Place { segment: segment.number, sector };
    sector::inspect(place, &bytes[range(sector..sector + 1)])
}

fn range(sectors: Range<u32>) -> Range<usize> {
    sectors.start as usize * SECTOR_BYTES..sectors.end as usize * SECTOR_BYTES
}
