//! The Raft log on disk.
//!
//! From the disk up, each file knows only those above it:
//!
//! | file | what |
//! |---|---|
//! | `disk/` | a folder of files: real, in memory, and faulty for tests |
//! | `sector` | 512 bytes that know whether they were written, and whether they still are as written |
//! | `frame` | one gathered write, one fdatasync |
//! | `record` | one change: entry, vote, truncation, purge, committed |
//! | `segment` | one file, zero-filled before its first use |
//! | `entries` | where each entry is: recent ones in memory, older ones on the disk |
//! | `housekeeper` | makes the next segment ahead, deletes purged ones |
//! | `writer` | the end of the log |
//! | `recover` | opening: what is whole, what is torn, what is damaged |
//! | `shared` | the log as callers see it, and the queue to the writer |
//! | `store` | openraft's traits |
//!
//! What it does NOT promise: a disk that acknowledges a sync and then forgets, or that returns zeros for the
//! last sectors it acknowledged, is found only if something was written after them. Nor can it tell that the
//! newest segments were deleted by hand, if none is left behind them. See docs/adr/0003-log-on-disk.md.
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
pub(crate) use store::SpaceWatch;
pub use store::{LogReader, LogStore};

use housekeeper::Housekeeper;
use recover::Recovered;
use segment::{FIRST_SECTOR, Segment};
use shared::{Shared, View};
use writer::Writer;

/// A gathered write ends here, unless a single entry is larger: a frame is torn as a whole, and the callers at
/// its front wait for its end.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Room for a standing, with much to spare.
const SEGMENT_BYTES_MIN: u64 = 4 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// The caller, before `append` returns. Saves a wake-up of another thread, 40 to 50 us, and blocks the
    /// caller's thread for the time of the fdatasync.
    Inline,
    /// A thread of its own, which takes all that is queued at once.
    Thread,
    /// The caller, but for the time in which [`LogStore::use_log_thread`] is set: then a thread, so that a leader's
    /// entries are on their way to the followers while its own disk writes them.
    Adaptive,
}

/// The settings of the log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// The size of a segment, in whole sectors. An entry that is larger gets a segment of its own.
    pub segment_bytes: u64,
    /// How many bytes of recent entries are kept in memory, by their size on the disk.
    pub cache_bytes: usize,
    /// Who writes.
    pub sync: SyncMode,
    /// Whether a thread makes the next segment before it is needed. Without it, and with
    /// [`SyncMode::Inline`], the log has no thread and is deterministic.
    pub prepare_ahead: bool,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            segment_bytes: 16 << 20,
            // What a busy node writes in half a second; decoded it is some times as much. Memory that is soon used again
            // is still in the caches of the processor, and a member that is further behind can wait for the disk.
            cache_bytes: 4 << 20,
            sync: SyncMode::Adaptive,
            prepare_ahead: true,
        }
    }
}

impl LogConfig {
    /// For a [`MemoryDisk`], and for the simulation: no threads, small segments, hardly a cache, since the disk
    /// is memory already.
    pub fn in_memory() -> LogConfig {
        LogConfig {
            segment_bytes: 1 << 20,
            cache_bytes: 1 << 20,
            sync: SyncMode::Inline,
            prepare_ahead: false,
        }
    }
}

/// What opening found and did.
#[derive(Debug, Clone)]
pub struct OpenReport {
    /// How many segments hold something.
    pub segments: u64,
    /// How many entries are present.
    pub entries: u64,
    /// How many bytes of records were read and verified.
    pub bytes: u64,
    /// The first entry's index.
    pub first_index: Option<u64>,
    /// The last entry's index.
    pub last_index: Option<u64>,
    /// How many bytes of a torn write were cut off. None of them was ever acknowledged.
    pub bytes_cut: u64,
    /// How long it took.
    pub time: Duration,
}

/// Opens the log in this folder, or makes a new one if the folder is empty.
///
/// Fails without changing anything if what was acknowledged may be damaged; the error says what to do.
pub fn open(disk: Arc<dyn Disk>, config: LogConfig) -> Result<(LogStore, OpenReport), LogError> {
    let started = Instant::now();
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&config.segment_bytes)
        || !config.segment_bytes.is_multiple_of(SECTOR_BYTES as u64)
    {
        return Err(LogError::Settings("a segment has 4 KiB to 1 GiB, in whole sectors of 512 bytes"));
    }
    let sectors = (config.segment_bytes / SECTOR_BYTES as u64) as u32;
    let found = recover::recover(&*disk, config.cache_bytes)?;
    tidy(&*disk).map_err(|e| LogError::disk("tidy up", &disk.folder(), "", e))?;

    let Recovered { standing, entries, mut segments, .. } = found;
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
    let housekeeper = Arc::new(Housekeeper::new(Arc::clone(&disk), sectors, found.next, segment.number + 1));
    let mut writer = Writer {
        disk,
        housekeeper: Arc::clone(&housekeeper),
        segment,
        sector: if fresh { FIRST_SECTOR } else { found.sector },
        frame: found.frame,
        standing: standing.clone(),
        index_max: found.index_max,
        closed: found.closed,
        payload: Vec::new(),
        sectors: Vec::new(),
        sync_seconds: crate::metrics::seconds(),
        sync_average: Duration::ZERO,
    };
    let sync_seconds = writer.sync_seconds.clone();
    // A crash may have come between a purge and the end of its deletions.
    let freed = writer.free();
    freed.iter().for_each(|number| drop(files.remove(number)));
    housekeeper.remove(freed);
    let frame_bytes_max = FRAME_BYTES_MAX.min(config.segment_bytes as usize / 2);
    let view = View::new(standing, entries, files);
    let shared = Shared::new(view, writer, frame_bytes_max, config.sync);
    Ok((LogStore::start(shared, config.prepare_ahead, sync_seconds)?, report))
}

/// Removes half-made segments, and makes all names durable: the process before may have died in between.
fn tidy(disk: &dyn Disk) -> std::io::Result<()> {
    for name in disk.list()?.iter().filter(|name| segment::is_in_making(name)) {
        disk.remove(name)?;
    }
    disk.sync_folder()
}
