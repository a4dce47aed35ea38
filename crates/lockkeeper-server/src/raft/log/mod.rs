//! The Raft log on disk.
//!
//! Each module depends only on those above it in this table:
//!
//! | module | content |
//! |---|---|
//! | `disk/` | a folder of files: real, in memory, and faulty for tests |
//! | `sector` | 512 bytes with a checksum and marks that show whether they were written |
//! | `frame` | one group commit: one write, one fdatasync |
//! | `record` | one change: entry, vote, truncation, purge, committed |
//! | `segment` | one file, zero-filled before its first use |
//! | `entries` | locations of entries: recent ones in memory, older ones on disk |
//! | `housekeeper` | creates the next segment ahead of time, keeps spares for a full disk, deletes purged segments |
//! | `writer` | appends frames at the end of the log |
//! | `recover` | opening: tells complete, torn and damaged frames apart |
//! | `shared` | the log as callers see it, and the queue to the writer |
//! | `store` | openraft's traits |
//!
//! What it does NOT detect: a disk that acknowledges a sync and loses the data, or returns zeros for the last
//! acknowledged sectors, with nothing written after them. Nor the deletion of the newest segments by hand, if no
//! segment is left behind them. See docs/adr/0003-log-on-disk.md.
//!
//! ```
//! # use std::sync::Arc;
//! # use lockkeeper_server::raft::log::{self, LogConfig, MemoryDisk};
//! // On a real disk: log::RealDisk::open(data_dir.join("log"))?
//! let (store, report) = log::open(Arc::new(MemoryDisk::new()), LogConfig::in_memory())?;
//! assert_eq!(report.entries, 0);
//! assert!(store.space().trouble.is_none());
//! # Ok::<(), log::LogError>(())
//! ```

pub mod disk;
mod entries;
mod error;
mod frame;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod housekeeper;
mod record;
mod recover;
mod sector;
mod segment;
mod shared;
mod store;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use disk::{Disk, DiskFile, MemoryDisk, RealDisk, SECTOR_BYTES};
#[cfg(any(test, feature = "simulation", feature = "fuzz"))]
pub use disk::{Faults, FaultyDisk};
pub use error::LogError;
pub(crate) use error::REPAIR;
pub use housekeeper::Space;
pub use shared::Room;
pub(crate) use store::SpaceWatch;
pub use store::{LogReader, LogStore};

use housekeeper::Housekeeper;
use recover::Recovered;
use segment::{FIRST_SECTOR, Segment, Spare};
use shared::{Shared, View};
use writer::Writer;

/// Maximum size of a frame, unless a single entry is larger. A frame is acknowledged and torn as a whole, so its
/// first callers wait for its last byte.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Leaves ample room for a checkpoint.
const SEGMENT_BYTES_MIN: u64 = 4 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The thread that writes and syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// The caller's thread, before `append` returns. Saves the wake-up of another thread (40 to 50 us), and blocks
    /// the caller during the fdatasync.
    Inline,
    /// A dedicated thread, which writes everything that is queued at once.
    Thread,
    /// The caller's thread, or the dedicated thread while [`LogStore::use_log_thread`] is set. A leader uses the
    /// dedicated thread, so that it sends entries to the followers while its own disk writes them.
    Adaptive,
}

/// Settings of the log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Size of a segment, a multiple of the sector size. A larger entry gets a segment of its own.
    pub segment_bytes: u64,
    /// Maximum size of the recent entries kept in memory, measured by their encoded size.
    pub cache_bytes: usize,
    /// The thread that writes and syncs.
    pub sync: SyncMode,
    /// Whether a thread creates the next segment before it is needed. Without it, and with
    /// [`SyncMode::Inline`], the log has no threads and is deterministic.
    pub prepare_ahead: bool,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            segment_bytes: 16 << 20,
            // A busy node writes this much in half a second; decoded, it is several times as large. A small cache
            // stays in the processor's caches, and a member that is further behind can wait for the disk.
            cache_bytes: 4 << 20,
            sync: SyncMode::Adaptive,
            prepare_ahead: true,
        }
    }
}

impl LogConfig {
    /// Returns settings for a [`MemoryDisk`] and for the simulation: no threads, small segments, a small cache,
    /// since the disk is already memory.
    pub fn in_memory() -> LogConfig {
        LogConfig {
            segment_bytes: 1 << 20,
            cache_bytes: 1 << 20,
            sync: SyncMode::Inline,
            prepare_ahead: false,
        }
    }
}

/// Result of opening a log.
#[derive(Debug, Clone)]
pub struct OpenReport {
    /// Segments that hold records.
    pub segments: u64,
    /// Entries that are present.
    pub entries: u64,
    /// Bytes of records that were read and verified.
    pub bytes: u64,
    /// Index of the first entry.
    pub first_index: Option<u64>,
    /// Index of the last entry.
    pub last_index: Option<u64>,
    /// Bytes of a torn write that were removed. None of them was ever acknowledged.
    pub bytes_cut: u64,
    /// Duration of the opening.
    pub time: Duration,
}

/// Opens the log in this folder, or creates a new one if the folder is empty.
///
/// If acknowledged data may be damaged, it fails without changing anything; the error says what to do.
pub fn open(disk: Arc<dyn Disk>, config: LogConfig) -> Result<(LogStore, OpenReport), LogError> {
    let started = Instant::now();
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&config.segment_bytes)
        || !config.segment_bytes.is_multiple_of(SECTOR_BYTES as u64)
    {
        return Err(LogError::Settings("the segment size must be 4 KiB to 1 GiB, a multiple of 512 bytes"));
    }
    let sectors = (config.segment_bytes / SECTOR_BYTES as u64) as u32;
    let found = recover::recover(&*disk, config.cache_bytes)?;
    remove_temporary_files(&*disk).map_err(|e| LogError::disk("clean up", &disk.folder(), "", e))?;

    let Recovered { meta, entries, mut segments, .. } = found;
    let fresh = segments.is_empty();
    if fresh {
        segments.push(Segment::create(&*disk, 1, sectors)?);
    }
    let (first, after) = entries.bounds();
    let present = entries.len() > 0;
    let report = OpenReport {
        segments: segments.len() as u64,
        entries: entries.len(),
        bytes: found.bytes,
        first_index: present.then_some(first),
        last_index: present.then(|| after - 1),
        bytes_cut: found.bytes_cut,
        time: started.elapsed(),
    };
    let mut files: BTreeMap<_, _> =
        segments.iter().map(|segment| (segment.number, Arc::clone(&segment.file))).collect();
    let Some(segment) = segments.pop() else {
        return Err(LogError::Settings("a log has at least one segment"));
    };
    let spares =
        Spare::open_all(&*disk, sectors).map_err(|e| LogError::disk("read", &disk.folder(), "", e))?;
    let housekeeper =
        Arc::new(Housekeeper::new(Arc::clone(&disk), sectors, found.next, segment.number + 1, spares));
    let mut writer = Writer {
        disk,
        housekeeper: Arc::clone(&housekeeper),
        segment,
        sector: if fresh { FIRST_SECTOR } else { found.sector },
        frame: found.frame,
        meta: meta.clone(),
        index_max: found.index_max,
        closed: found.closed,
        payload: Vec::new(),
        sectors: Vec::new(),
        sync_seconds: crate::metrics::seconds(),
        sync_average: Duration::ZERO,
    };
    let sync_seconds = writer.sync_seconds.clone();
    // A crash may have interrupted the deletions after a purge.
    let freed = writer.free();
    freed.iter().for_each(|number| drop(files.remove(number)));
    housekeeper.remove(freed);
    let frame_bytes_max = FRAME_BYTES_MAX.min(config.segment_bytes as usize / 2);
    let view = View::new(meta, entries, files);
    let shared = Shared::new(view, writer, config.segment_bytes, frame_bytes_max, config.sync);
    Ok((LogStore::start(shared, config.prepare_ahead, sync_seconds)?, report))
}

/// Removes incomplete segments and makes all file names durable. The previous process may have died while it created one.
fn remove_temporary_files(disk: &dyn Disk) -> std::io::Result<()> {
    for name in disk.list()?.iter().filter(|name| segment::is_temporary(name)) {
        disk.remove(name)?;
    }
    disk.sync_folder()
}
