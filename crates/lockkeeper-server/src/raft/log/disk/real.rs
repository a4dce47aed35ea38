//! The disk of the file system.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskFile};
use crate::data_dir::private_files;

/// Bytes zero-filled between two syncs. One large sync would delay the log's own fdatasync.
const FILL_BYTES: usize = 1 << 20;
/// File that is locked while the folder is in use.
const LOCK_NAME: &str = "lock";

/// A folder of the file system, locked against other processes.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
    handle: File,
    _lock: File,
}

impl RealDisk {
    /// Opens the folder, and creates it if it does not exist. Fails with [`io::ErrorKind::WouldBlock`] if another
    /// process has it open.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let folder = folder.into();
        if !folder.is_dir() {
            private_files::create_folder(&folder)?;
            // The folder's own name must survive a power failure too.
            let parent = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent)?.sync_all()?;
        }
        let lock_path = folder.join(LOCK_NAME);
        let lock = private_files::options().create(true).write(true).truncate(false).open(&lock_path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!(
                        "another process uses {}: stop it, or give this node a data folder of its own",
                        folder.display()
                    ),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let handle = File::open(&folder)?;
        Ok(RealDisk { folder, handle, _lock: lock })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Disk for RealDisk {
    fn folder(&self) -> String {
        self.folder.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(name);
        let file = private_files::options().create_new(true).read(true).write(true).open(&path)?;
        match fill_with_zeros(&file, bytes) {
            Ok(()) => Ok(Arc::new(RealFile(file))),
            Err(error) => {
                // On a full disk the incomplete file would occupy the missing space.
                fs::remove_file(&path).ok();
                Err(error)
            }
        }
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = private_files::options().read(true).write(true).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

fn fill_with_zeros(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0u8; FILL_BYTES];
    let mut done = 0u64;
    while done < bytes {
        let step = usize::try_from(bytes - done).unwrap_or(FILL_BYTES).min(FILL_BYTES);
        file.write_all_at(&zeros[..step], done)?;
        file.sync_data()?;
        done += step as u64;
    }
    Ok(())
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn has_name(&self) -> io::Result<bool> {
        Ok(self.0.metadata()?.nlink() > 0)
    }
}
