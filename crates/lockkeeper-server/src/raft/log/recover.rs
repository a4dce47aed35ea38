//! Opening: reads every segment, verifies everything, and decides what the end of the log is.
//!
//! **What may be cut.** Only the last frame can be torn (see `frame`), and a torn frame was never
//! acknowledged. A frame that fails to verify is taken for torn only with proof:
//! - one of its own sectors was never written, or not to its end (see `sector`), and
//! - no sector of any other frame lies behind it, in this segment or a later one: the next frame is written
//!   only after this one is durable.
//!
//! Anything else means that something was changed after it was written, perhaps after it was acknowledged:
//! the node stops (S10). The counter-example to "cut what fails its checksum": a vote was given, its last
//! sector gets a wrong bit, the node restarts, forgets the vote, and votes again in the same term.
//!
//! **What reads back need not be on the disk.** If a process dies between write and fdatasync, or fdatasync
//! fails, the next process reads the frame from memory. So the last frame is written again, byte by byte the
//! same, and synced, before anyone relies on it. Frames before it are durable, or it would not be there.

use std::collections::VecDeque;
use std::ops::Range;

use super::disk::{Disk, SECTOR_BYTES};
use super::entries::Entries;
use super::error::LogError;
use super::frame::{self, Location};
use super::record::{Record, Standing};
use super::sector::{self, Found, Place};
use super::segment::{self, FIRST_SECTOR, Segment};
use super::writer::Closed;

/// What was found.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) standing: Standing,
    pub(crate) entries: Entries,
    /// Full segments, the oldest first.
    pub(crate) closed: VecDeque<Closed>,
    /// Open files of all segments that hold frames.
    pub(crate) segments: Vec<Segment>,
    pub(crate) index_max: Option<u64>,
    /// The next sector to write in the last of `segments`.
    pub(crate) sector: u32,
    /// The number of the next frame.
    pub(crate) frame: u64,
    /// A segment behind it that was made ahead.
    pub(crate) next: Option<Segment>,
    pub(crate) bytes: u64,
    pub(crate) bytes_cut: u64,
}

/// Reads the whole folder. Writes nothing but the repair of the tail.
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
    /// Segments without a frame, behind all others.
    unused: Vec<Segment>,
    /// Where the first entries should be that the first segment knows of, but that were before it.
    missing_through: Option<u64>,
    /// The torn frame, and where it is.
    torn: Option<(Segment, Range<u32>)>,
    /// The last frame: its segment, first sector and bytes.
    last: Option<(Segment, u32, Vec<u8>)>,
}

impl<'a> Scan<'a> {
    fn new(disk: &'a dyn Disk, cache_bytes: usize) -> Scan<'a> {
        let found = Recovered {
            standing: Standing::default(),
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

    /// How many sectors the next frame has, if it is here and whole.
    fn whole_frame(&mut self, segment: &Segment, bytes: &[u8], first: u32) -> Result<Option<u32>, LogError> {
        let Some(Found::Whole(head)) = (first < segment.sectors).then(|| inspect(segment, bytes, first))
        else {
            return Ok(None);
        };
        if self.found.frame == 0 {
            // The frames of the segments before this one, if there were any, went with their purge.
            self.found.frame = if segment.number == 1 { 1 } else { head.frame };
        }
        let fits = head.part == 0 && head.parts <= segment.sectors - first && head.frame == self.found.frame;
        let whole = fits
            && (1..head.parts).all(|part| {
                let expected = sector::Head { part, ..head };
                inspect(segment, bytes, first + part) == Found::Whole(expected)
            });
        Ok(whole.then_some(head.parts))
    }

    fn frame(&mut self, segment: &Segment, bytes: &[u8], first: u32, parts: u32) -> Result<(), LogError> {
        let number = segment.number;
        if self.torn.is_some() {
            return Err(self.damaged(number, first, "frames go on after a torn one".to_owned()));
        }
        if let Some(unused) = self.unused.first() {
            let what = format!("frames go on after segment {}, which has none", unused.number);
            return Err(self.damaged(number, first, what));
        }
        let sectors = &bytes[range(first..first + parts)];
        let records = frame::records(sectors)
            .ok_or_else(|| self.damaged(number, first, "the length of a frame makes no sense".to_owned()))?;
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
            let is_standing = matches!(record, Record::Standing(_));
            if is_standing != (first == FIRST_SECTOR && offset == 0) {
                return Err(wrong("the standing is not where a segment starts".to_owned()));
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
        let Recovered { standing, entries, index_max, segments, .. } = &mut self.found;
        match record {
            Record::Standing(start) if segments.len() == 1 => {
                if start.last_index() > start.purged_index() {
                    self.missing_through = start.last_index();
                }
                *standing = start;
            }
            Record::Standing(start) if start != *standing => {
                return Err(format!(
                    "the segments before add up to {standing:?}, and this one starts at {start:?}"
                ));
            }
            Record::Standing(_) => {}
            Record::Entry(entry) => {
                let index = entry.log_id.index;
                if !standing.may_follow(index) {
                    return Err(format!("entry {index} follows entry {:?}", standing.last_index()));
                }
                standing.append(entry.log_id);
                *index_max = (*index_max).max(Some(index));
                entries.push(entry, location.bytes as usize, 0, Some(location));
            }
            Record::Vote(vote) => standing.vote = Some(vote),
            Record::TruncateAfter(last) => {
                standing.truncate_after(&last);
                entries.truncate_after(standing.last_index());
                self.missing_through = self.missing_through.min(standing.last_index());
            }
            Record::Purge(upto) => {
                standing.purge(&upto);
                entries.purge(upto.index);
            }
            Record::Committed(upto) => standing.committed = upto,
        }
        Ok(())
    }

    /// Judges what lies behind the last whole frame of a segment.
    fn tail(&mut self, segment: &Segment, bytes: &[u8], first: u32) -> Result<(), LogError> {
        let sectors: Vec<(u32, Found)> = (first..segment.sectors)
            .map(|at| (at, inspect(segment, bytes, at)))
            .filter(|(_, found)| *found != Found::Zero)
            .collect();
        let (Some((begin, _)), Some((end, _))) = (sectors.first().copied(), sectors.last().copied()) else {
            return Ok(());
        };
        if self.torn.is_some() || (first == FIRST_SECTOR && self.unused.len() > 1) {
            return Err(self.damaged(segment.number, begin, "the log goes on after its end".to_owned()));
        }
        let expected = self.found.frame.max(1);
        let mut parts = None;
        for (at, found) in &sectors {
            let Found::Whole(head) = found else { continue };
            let own = head.frame == expected
                && head.part.checked_add(first) == Some(*at)
                && head.parts <= segment.sectors - first
                && parts.is_none_or(|parts| parts == head.parts);
            if !own {
                let what = format!(
                    "frame {expected} is damaged or missing, and it was once durable, because sector {at} of \
                     this file is from frame {}",
                    head.frame
                );
                return Err(self.damaged(segment.number, first, what));
            }
            parts = Some(head.parts);
        }
        let unwritten = |at: u32| matches!(inspect(segment, bytes, at), Found::Zero | Found::Unfinished);
        let torn = match parts {
            // Its size is known: one of its sectors is not written, and nothing lies behind it.
            Some(parts) => (first..first + parts).any(unwritten) && end < first + parts,
            // No sector tells its size. The first is not written, and none was written to its end.
            None => unwritten(first) && sectors.iter().all(|(_, found)| *found == Found::Unfinished),
        };
        if !torn {
            let what = format!(
                "frame {expected} fails its checksum, and all of it was written: this is no torn write, and it \
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
            return Err(self.damaged(number, FIRST_SECTOR, "the segments before are missing".to_owned()));
        }
        if self.missing_through > found.standing.purged_index() {
            let number = first_number.unwrap_or_default();
            let what = format!(
                "the segments before are missing: entries {} to {} were in them",
                found.standing.purged_index().map_or(0, |purged| purged + 1),
                self.missing_through.unwrap_or_default()
            );
            return Err(self.damaged(number, FIRST_SECTOR, what));
        }
        self.repair()?;
        if self.found.segments.is_empty() {
            // A log that was made and never written to.
            self.found.segments.extend(self.unused.drain(..).next());
        }
        self.found.next = self.unused.into_iter().next();
        self.found.frame = self.found.frame.max(1);
        Ok(self.found)
    }

    /// Zeroes the torn frame and makes the last whole one durable.
    ///
    /// A crash in here does no harm: a torn frame with more zeros in it is still torn, and the last frame is
    /// overwritten by itself, but for marks that were torn.
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
                "cut a torn write off the log: it was never acknowledged"
            );
            write(&segment, sectors.start, &zeros)?;
        }
        if let Some((segment, sector, mut bytes)) = self.last.take() {
            bytes.chunks_exact_mut(SECTOR_BYTES).for_each(sector::mark);
            write(&segment, sector, &bytes)?;
        }
        Ok(())
    }

    /// Its checksum has been found to fit: so it was written like this.
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

fn inspect(segment: &Segment, bytes: &[u8], sector: u32) -> Found {
    let place = Place { segment: segment.number, sector };
    sector::inspect(place, &bytes[range(sector..sector + 1)])
}

fn range(sectors: Range<u32>) -> Range<usize> {
    sectors.start as usize * SECTOR_BYTES..sectors.end as usize * SECTOR_BYTES
}
