//! The segment: one file of the log, created at its full size, zero-filled and durable before its first use.
//!
//! Its first sector is the file's header. The frames follow; a frame never spans two files.
//!
//! ```text
//! 0   magic    8 bytes
//! 8   crc32    of bytes 12..512
//! 12  format   u32
//! 16  number   u64: segments are numbered from 1, without gaps
//! 24  bytes    u64: size of the file
//! ```

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile, SECTOR_BYTES};
use super::error::LogError;
use super::sector::array;

const MAGIC: [u8; 8] = *b"LKEEPLOG";
const FORMAT: u32 = 1;
/// The first sector after the header.
pub(crate) const FIRST_SECTOR: u32 = 1;

/// Returns the file name of a segment.
pub(crate) fn name(number: u64) -> String {
    format!("segment-{number:016}.log")
}

/// Parses the number in a segment's file name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("segment-")?.strip_suffix(".log")?.parse().ok()?;
    (self::name(number) == name).then_some(number)
}

/// Returns the file name of a segment while it is being created.
fn temporary_name(number: u64) -> String {
    format!("segment-{number:016}.new")
}

/// Returns the file name of a spare.
pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number:016}.log")
}

/// Reports whether a file is a segment or a spare whose creation was interrupted.
pub(crate) fn is_temporary(name: &str) -> bool {
    (name.starts_with("segment-") || name.starts_with("spare-")) && name.ends_with(".new")
}

/// A file that reserves the disk space of a segment: zero-filled and durable, without a number in the log. A segment is
/// made of it without further space.
#[derive(Debug)]
pub(crate) struct Spare {
    /// Distinguishes the names of spares. It has no order and no meaning in the log.
    pub(crate) number: u64,
    file: Arc<dyn DiskFile>,
}

impl Spare {
    /// Creates a spare. It has its final name only when it is complete.
    pub(crate) fn create(disk: &dyn Disk, number: u64, sectors: u32) -> Result<Spare, LogError> {
        let name = spare_name(number);
        let temporary = format!("spare-{number:016}.new");
        let create = || -> io::Result<Arc<dyn DiskFile>> {
            if disk.list()?.contains(&temporary) {
                disk.remove(&temporary)?;
            }
            let file = disk.create(&temporary, u64::from(sectors) * SECTOR_BYTES as u64)?;
            file.sync()?;
            disk.rename(&temporary, &name)?;
            disk.sync_folder()?;
            Ok(file)
        };
        let file = create().map_err(|e| LogError::disk("create", &disk.folder(), &name, e))?;
        Ok(Spare { number, file })
    }

    /// Opens the spares that an earlier process has left. Those of another size are removed.
    pub(crate) fn open_all(disk: &dyn Disk, sectors: u32) -> io::Result<Vec<Spare>> {
        let mut spares = Vec::new();
        for name in disk.list()? {
            let number = name.strip_prefix("spare-").and_then(|name| name.strip_suffix(".log"));
            let Some(number) = number.and_then(|number| number.parse().ok()) else { continue };
            let file = disk.open(&name)?;
            match file.size()? == u64::from(sectors) * SECTOR_BYTES as u64 {
                true => spares.push(Spare { number, file }),
                false => disk.remove(&name)?,
            }
        }
        Ok(spares)
    }
}

/// An open segment.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    /// Number of sectors, including the header.
    pub(crate) sectors: u32,
    pub(crate) file: Arc<dyn DiskFile>,
}

impl Segment {
    /// Creates a segment. On return the file, its zeros and its name are durable. A crash before that leaves either
    /// no segment of that name or a complete one.
    pub(crate) fn create(disk: &dyn Disk, number: u64, sectors: u32) -> Result<Segment, LogError> {
        let temporary = temporary_name(number);
        let create = || -> io::Result<Arc<dyn DiskFile>> {
            if disk.list()?.contains(&temporary) {
                disk.remove(&temporary)?;
            }
            let bytes = sectors as u64 * SECTOR_BYTES as u64;
            let file = disk.create(&temporary, bytes)?;
            file.write_at(&header(number, bytes), 0)?;
            file.sync()?;
            disk.rename(&temporary, &name(number))?;
            disk.sync_folder()?;
            Ok(file)
        };
        let file = create().map_err(|e| LogError::disk("create", &disk.folder(), &name(number), e))?;
        Ok(Segment { number, sectors, file })
    }

    /// Makes a segment of a spare. A crash leaves the spare, at most with a header that the next attempt replaces, or the
    /// segment.
    pub(crate) fn from_spare(
        disk: &dyn Disk,
        number: u64,
        sectors: u32,
        spare: &Spare,
    ) -> Result<Segment, LogError> {
        let make = || -> io::Result<()> {
            spare.file.write_at(&header(number, u64::from(sectors) * SECTOR_BYTES as u64), 0)?;
            spare.file.sync()?;
            disk.rename(&spare_name(spare.number), &name(number))?;
            disk.sync_folder()
        };
        make().map_err(|e| LogError::disk("create", &disk.folder(), &name(number), e))?;
        Ok(Segment { number, sectors, file: Arc::clone(&spare.file) })
    }

    /// Opens a segment and verifies its header and size.
    pub(crate) fn open(disk: &dyn Disk, number: u64) -> Result<Segment, LogError> {
        let name = name(number);
        let failed = |e| LogError::disk("read", &disk.folder(), &name, e);
        let damaged = |offset, what: String| {
            Err(LogError::Damaged { file: format!("{}/{name}", disk.folder()), offset, what })
        };
        let file = disk.open(&name).map_err(failed)?;
        let size = file.size().map_err(failed)?;
        if size < SECTOR_BYTES as u64 {
            return damaged(size, "the file ends within its header".to_owned());
        }
        let mut header = [0; SECTOR_BYTES];
        file.read_at(&mut header, 0).map_err(failed)?;
        if header[..8] != MAGIC {
            return damaged(0, "the file is not a segment of a Lockkeeper log".to_owned());
        }
        if crc32fast::hash(&header[12..]) != u32::from_le_bytes(array(&header, 8)) {
            return damaged(8, "the header fails its checksum".to_owned());
        }
        let format = u32::from_le_bytes(array(&header, 12));
        if format != FORMAT {
            return Err(LogError::Format { file: name, found: format, known: FORMAT });
        }
        let own_number = u64::from_le_bytes(array(&header, 16));
        if own_number != number {
            return damaged(16, format!("its header says segment {own_number}: the file was renamed"));
        }
        let bytes = u64::from_le_bytes(array(&header, 24));
        // A segment has its full size before it gets its final name, so no crash explains another size.
        if bytes != size {
            return damaged(
                size.min(bytes),
                format!("the file has {size} bytes, but was created with {bytes}"),
            );
        }
        match u32::try_from(size / SECTOR_BYTES as u64) {
            Ok(sectors) if size % SECTOR_BYTES as u64 == 0 => Ok(Segment { number, sectors, file }),
            _ => damaged(24, format!("{size} bytes is not a valid segment size")),
        }
    }
}

fn header(number: u64, bytes: u64) -> [u8; SECTOR_BYTES] {
    let mut header = [0; SECTOR_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[12..16].copy_from_slice(&FORMAT.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    header[24..32].copy_from_slice(&bytes.to_le_bytes());
    let crc = crc32fast::hash(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    header
}
