//! Disk usage of the data folder.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::limits::blocking;

/// The disk usage is read again after this time, however many callers want it.
const READ_EVERY: Duration = Duration::from_secs(5);
/// A caller waits this long for the disk, and then takes the last known usage.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// The space on a disk, and how much of it the node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Disk {
    /// Space available to this process.
    pub free_bytes: u64,
    /// Size of the disk.
    pub total_bytes: u64,
    /// Space used by the log and the snapshots.
    pub data_bytes: u64,
}

impl Disk {
    /// Reads the disk usage of a folder. Takes a few blocking system calls, so it is not for every request.
    pub fn of(folder: &Path) -> std::io::Result<Disk> {
        let disk = rustix::fs::statvfs(folder)?;
        let unit = disk.f_frsize;
        Ok(Disk {
            free_bytes: disk.f_bavail.saturating_mul(unit),
            total_bytes: disk.f_blocks.saturating_mul(unit),
            data_bytes: size(folder, 3)?,
        })
    }
}

/// The disk usage of the data folder, read on another thread and kept for a while. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskWatch(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    /// None if the node runs in memory.
    folder: Option<PathBuf>,
    disk: Option<Disk>,
    /// When the last read began.
    read_at: Option<Instant>,
    /// A read is in progress. A disk may hang.
    is_reading: bool,
}

impl DiskWatch {
    pub(crate) fn new(folder: Option<PathBuf>) -> DiskWatch {
        DiskWatch(Arc::new(Mutex::new(Watched { folder, ..Watched::default() })))
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the disk usage; `None` if it is not known.
    pub(crate) async fn usage(&self) -> Option<Disk> {
        if let Some(folder) = self.begin_read() {
            let watch = self.clone();
            let read = blocking::run(move || {
                let disk = Disk::of(&folder).ok();
                let mut watched = watch.watched();
                watched.disk = disk;
                watched.is_reading = false;
            });
            // If the disk is slow, the read continues without a caller.
            drop(tokio::time::timeout(WAIT_MAX, read).await);
        }
        self.watched().disk
    }

    /// Returns the folder if its usage must be read now.
    fn begin_read(&self) -> Option<PathBuf> {
        let mut watched = self.watched();
        let is_recent = watched.read_at.is_some_and(|read_at| read_at.elapsed() < READ_EVERY);
        if is_recent || watched.is_reading {
            return None;
        }
        let folder = watched.folder.clone()?;
        watched.is_reading = true;
        watched.read_at = Some(Instant::now());
        Some(folder)
    }
}

/// Returns the size of all files in a folder and in `depth` levels of subfolders.
fn size(folder: &Path, depth: usize) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // A file may be removed meanwhile.
        let Ok(about) = entry.metadata() else { continue };
        bytes += match (about.is_dir(), depth) {
            (true, 0) => 0,
            (true, _) => size(&entry.path(), depth - 1).unwrap_or(0),
            (false, _) => about.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn disk_is_read_once_for_many_callers() {
        let folder = tempfile::tempdir().unwrap();
        let watch = DiskWatch::new(Some(folder.path().to_owned()));
        let first = watch.usage().await;
        assert_eq!(first.unwrap().data_bytes, 0);
        std::fs::write(folder.path().join("a"), [0; 1_000]).unwrap();
        for _ in 0..100 {
            assert_eq!(watch.usage().await, first, "it is recent");
        }
        watch.watched().read_at = None;
        assert_eq!(watch.usage().await.unwrap().data_bytes, 1_000);
        assert_eq!(DiskWatch::default().usage().await, None);
    }

    #[tokio::test]
    async fn hanging_read_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let watch = DiskWatch::new(Some(folder.path().to_owned()));
        assert!(watch.begin_read().is_some());
        watch.watched().read_at = None;
        assert_eq!(watch.begin_read(), None);
    }

    #[test]
    fn all_files_below_the_folder_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), [0; 1_000]).unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        std::fs::write(folder.path().join("log/b"), [0; 500]).unwrap();
        let disk = Disk::of(folder.path()).unwrap();
        assert_eq!(disk.data_bytes, 1_500);
        assert!(disk.free_bytes <= disk.total_bytes && disk.total_bytes > 0);
        assert!(Disk::of(Path::new("/there/is/no/such/folder")).is_err());
    }
}
