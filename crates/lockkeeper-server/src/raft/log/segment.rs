//! The segment: one file of the log, created at its full size, zero-filled and durable before its first use.
//!
//! Its first sector is the file's head; the frames follow, and a frame never spans two files.
//!
//! ```text
//! 0   magic    8 bytes
//! 8   crc32    of bytes 12..512
//! 12  format   u32
//! 16  number   u64: the segments of a log are numbered without gaps, from 1
//! 24  bytes    u64: the size of the file
//! ```

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile, SECTOR_BYTES};
use super::error::LogError;
use super::sector::array;

const MAGIC: [u8; 8] = *b"LKEEPLOG";
const FORMAT: u32 = 1;
/// The head takes the first sector.
pub(crate) const FIRST_SECTOR: u32 = 1;

/// The name of a segment's file.
pub(crate) fn name(number: u64) -> String {
    format!("segment-{number:016}.log")
}

/// The number in a segment's file name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("segment-")?.strip_suffix(".log")?.parse().ok()?;
    (self::name(number) == name).then_some(number)
}

/// The name of a segment while it is being made.
fn name_in_making(number: u64) -> String {
    format!("segment-{number:016}.new")
}

/// Whether a file is a segment whose making was cut short.
pub(crate) fn is_in_making(name: &str) -> bool {
    name.starts_with("segment-") && name.ends_with(".new")
}

/// An open segment.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    /// How many sectors it has, the head included.
    pub(crate) sectors: u32,
    pub(crate) file: Arc<dyn DiskFile>,
}

impl Segment {
    /// Makes a segment. When this returns, the file, its zeros and its name are durable: a crash at any moment
    /// before leaves no segment by that name, or a whole one.
    pub(crate) fn create(disk: &dyn Disk, number: u64, sectors: u32) -> Result<Segment, LogError> {
        let making = name_in_making(number);
        let create = || -> io::Result<Arc<dyn DiskFile>> {
            if disk.list()?.contains(&making) {
                disk.remove(&making)?;
            }
            let bytes = sectors as u64 * SECTOR_BYTES as u64;
            let file = disk.create(&making, bytes)?;
            file.write_at(&head(number, bytes), 0)?;
            file.sync()?;
            disk.rename(&making, &name(number))?;
            disk.sync_folder()?;
            Ok(file)
        };
        let file = create().map_err(|e| LogError::disk("create", &disk.folder(), &name(number), e))?;
        Ok(Segment { number, sectors, file })
    }

    /// Opens a segment and verifies its head and its size.
    pub(crate) fn open(disk: &dyn Disk, number: u64) -> Result<Segment, LogError> {
        let name = name(number);
        let failed = |e| LogError::disk("read", &disk.folder(), &name, e);
        let damaged = |offset, what: String| {
            Err(LogError::Damaged { file: format!("{}/{name}", disk.folder()), offset, what })
        };
        let file = disk.open(&name).map_err(failed)?;
        let size = file.size().map_err(failed)?;
        if size < SECTOR_BYTES as u64 {
            return damaged(size, "the file ends within its head".to_owned());
        }
        let mut head = [0; SECTOR_BYTES];
        file.read_at(&mut head, 0).map_err(failed)?;
        if head[..8] != MAGIC {
            return damaged(0, "this is not a segment of a Lockkeeper log".to_owned());
        }
        if crc32fast::hash(&head[12..]) != u32::from_le_bytes(array(&head, 8)) {
            return damaged(8, "the head of the file fails its checksum".to_owned());
        }
        let format = u32::from_le_bytes(array(&head, 12));
        if format != FORMAT {
            return Err(LogError::Format { file: name, found: format, known: FORMAT });
        }
        let own_number = u64::from_le_bytes(array(&head, 16));
        if own_number != number {
            return damaged(16, format!("the file says that it is segment {own_number}: it was renamed"));
        }
        let bytes = u64::from_le_bytes(array(&head, 24));
        // A segment has its full size before it gets its name, so no crash explains another size.
        if bytes != size {
            return damaged(size.min(bytes), format!("the file has {size} bytes, and was made with {bytes}"));
        }
        match u32::try_from(size / SECTOR_BYTES as u64) {
            Ok(sectors) if size % SECTOR_BYTES as u64 == 0 => Ok(Segment { number, sectors, file }),
            _ => damaged(24, format!("a segment can't have {size} bytes")),
        }
    }
}

fn head(number: u64, bytes: u64) -> [u8; SECTOR_BYTES] {
    let mut head = [0; SECTOR_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[12..16].copy_from_slice(&FORMAT.to_le_bytes());
    head[16..24].copy_from_slice(&number.to_le_bytes());
    head[24..32].copy_from_slice(&bytes.to_le_bytes());
    let crc = crc32fast::hash(&head[12..]);
    head[8..12].copy_from_slice(&crc.to_le_bytes());
    head
}
