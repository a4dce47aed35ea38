//! A disk in memory that behaves like the worst disk the log must survive: it loses what was not synced, in any
//! order, tears sectors, runs full and fails. For tests and for the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::memory::span;
use super::{Disk, DiskFile, SECTOR_BYTES};

/// Injected faults. All are off by default.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Total capacity: creating a file beyond it fails as on a full disk.
    pub capacity_bytes: Option<u64>,
    /// Writes that still succeed. Each later one writes half of its bytes and fails.
    pub writes_left: Option<u64>,
    /// Syncs that still succeed. Later ones fail, and their data remains in flight: a crash keeps any part of it.
    pub syncs_left: Option<u64>,
    /// A failed sync drops its data, as on Linux: the data can be read and counts as clean, but is not on the disk.
    pub failed_sync_forgets: bool,
    /// Duration of each sync.
    pub sync_delay: Duration,
    /// Duration of each sync on the clock of a simulation.
    pub sync_pause: Duration,
    /// Duration of the creation of a file.
    pub create_delay: Duration,
}

/// A folder in memory that distinguishes durable data from data that is only readable. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FaultyDisk {
    folder: Arc<Mutex<Folder>>,
}

#[derive(Debug, Default)]
struct Folder {
    files: BTreeMap<String, Arc<Mutex<Content>>>,
    durable: BTreeMap<String, Arc<Mutex<Content>>>,
    faults: Faults,
    syncs: u64,
}

#[derive(Debug, Default, Clone)]
struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that the next sync makes durable.
    dirty: BTreeSet<usize>,
}

impl FaultyDisk {
    /// Creates an empty folder without faults.
    pub fn new() -> FaultyDisk {
        FaultyDisk::default()
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.folder).faults = faults;
    }

    /// Returns the number of file syncs that were requested.
    pub fn syncs(&self) -> u64 {
        lock(&self.folder).syncs
    }

    /// Returns the folder as it would be after a power failure now. For each sector that was written and not synced,
    /// `choose(3)` decides: 0 the old content, 1 the new, 2 torn at the byte `choose(512)`. Names that were not
    /// synced are lost if `choose(2)` is 0. This disk itself does not change.
    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> FaultyDisk {
        let folder = lock(&self.folder);
        let names = if choose(2) == 0 { &folder.durable } else { &folder.files };
        let files: BTreeMap<_, _> = names
            .iter()
            .map(|(name, content)| (name.clone(), Arc::new(Mutex::new(lock(content).after_crash(choose)))))
            .collect();
        let durable = files.clone();
        FaultyDisk { folder: Arc::new(Mutex::new(Folder { files, durable, ..Folder::default() })) }
    }

    /// Returns a deep copy, as the next process finds it after this one was killed: no written data is lost.
    pub fn copy(&self) -> FaultyDisk {
        let folder = lock(&self.folder);
        let copy = |files: &BTreeMap<String, Arc<Mutex<Content>>>| -> BTreeMap<_, _> {
            files
                .iter()
                .map(|(name, file)| (name.clone(), Arc::new(Mutex::new(lock(file).clone()))))
                .collect()
        };
        let files = copy(&folder.files);
        // All names of the copy count as durable: `crash` covers missing syncs of the folder.
        FaultyDisk {
            folder: Arc::new(Mutex::new(Folder { durable: files.clone(), files, ..Folder::default() })),
        }
    }

    /// Returns the content of a file.
    pub fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        Ok(lock(&file).current.clone())
    }

    /// Flips bits of one byte, durably.
    pub fn flip(&self, name: &str, offset: usize, bits: u8) -> io::Result<()> {
        let file = self.file(name)?;
        let mut content = lock(&file);
        for bytes in content.both() {
            *bytes.get_mut(offset).ok_or(io::ErrorKind::UnexpectedEof)? ^= bits;
        }
        Ok(())
    }

    /// Overwrites a part of a file, durably.
    pub fn overwrite(&self, name: &str, offset: usize, new: &[u8]) -> io::Result<()> {
        let file = self.file(name)?;
        let mut content = lock(&file);
        for bytes in content.both() {
            let span = span(bytes, offset as u64, new.len())?;
            bytes[span].copy_from_slice(new);
        }
        Ok(())
    }

    /// Truncates a file to this size, or extends it with zeros, durably.
    pub fn set_size(&self, name: &str, size: usize) -> io::Result<()> {
        let file = self.file(name)?;
        let mut content = lock(&file);
        content.both().into_iter().for_each(|bytes| bytes.resize(size, 0));
        content.dirty.retain(|sector| sector * SECTOR_BYTES < size);
        Ok(())
    }

    fn file(&self, name: &str) -> io::Result<Arc<Mutex<Content>>> {
        lock(&self.folder).files.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn handle(&self, content: Arc<Mutex<Content>>) -> Arc<dyn DiskFile> {
        Arc::new(FaultyFile { content, folder: Arc::clone(&self.folder) })
    }
}

impl Content {
    fn both(&mut self) -> [&mut Vec<u8>; 2] {
        [&mut self.current, &mut self.durable]
    }

    fn after_crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> Content {
        let mut durable = self.durable.clone();
        for sector in &self.dirty {
            let start = sector * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(self.current.len());
            let kept = match choose(3) {
                0 => start,
                1 => end,
                _ => end.min(start + choose(SECTOR_BYTES)),
            };
            // A file that was never synced has no durable size yet.
            if kept > durable.len() {
                durable.resize(kept, 0);
            }
            durable[start.min(kept)..kept].copy_from_slice(&self.current[start.min(kept)..kept]);
        }
        Content { current: durable.clone(), durable, dirty: BTreeSet::new() }
    }
}

impl Disk for FaultyDisk {
    fn folder(&self) -> String {
        "faulty".to_owned()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(lock(&self.folder).files.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let size = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let delay = lock(&self.folder).faults.create_delay;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut folder = lock(&self.folder);
        let used: u64 = folder.files.values().map(|file| lock(file).current.len() as u64).sum();
        if folder.faults.capacity_bytes.is_some_and(|capacity| used + bytes > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if folder.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let dirty = (0..size.div_ceil(SECTOR_BYTES)).collect();
        let content = Arc::new(Mutex::new(Content { current: vec![0; size], durable: Vec::new(), dirty }));
        folder.files.insert(name.to_owned(), Arc::clone(&content));
        Ok(self.handle(content))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.handle(self.file(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut folder = lock(&self.folder);
        let file = folder.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        folder.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        lock(&self.folder).files.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut folder = lock(&self.folder);
        folder.durable = folder.files.clone();
        Ok(())
    }

    fn sync_pause(&self) -> Duration {
        lock(&self.folder).faults.sync_pause
    }
}

#[derive(Debug)]
struct FaultyFile {
    content: Arc<Mutex<Content>>,
    folder: Arc<Mutex<Folder>>,
}

impl DiskFile for FaultyFile {
    fn size(&self) -> io::Result<u64> {
        Ok(lock(&self.content).current.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let content = lock(&self.content);
        buffer.copy_from_slice(&content.current[span(&content.current, offset, buffer.len())?]);
        Ok(())
    }

    fn write_at(&self, new: &[u8], offset: u64) -> io::Result<()> {
        let fails = spend(&mut lock(&self.folder).faults.writes_left);
        let new = if fails { &new[..new.len() / 2] } else { new };
        let mut content = lock(&self.content);
        let span = span(&content.current, offset, new.len())?;
        if !span.is_empty() {
            content.dirty.extend(span.start / SECTOR_BYTES..span.end.div_ceil(SECTOR_BYTES));
            content.current[span].copy_from_slice(new);
        }
        if fails { Err(input_output_error()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let (fails, forgets, delay) = {
            let mut folder = lock(&self.folder);
            folder.syncs += 1;
            let fails = spend(&mut folder.faults.syncs_left);
            (fails, folder.faults.failed_sync_forgets, folder.faults.sync_delay)
        };
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut content = lock(&self.content);
        if fails && !forgets {
            return Err(input_output_error());
        }
        let dirty = std::mem::take(&mut content.dirty);
        if fails {
            return Err(input_output_error());
        }
        let Content { current, durable, .. } = &mut *content;
        durable.resize(current.len(), 0);
        for sector in dirty {
            let start = sector * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(current.len());
            durable[start..end].copy_from_slice(&current[start..end]);
        }
        Ok(())
    }
}

/// Counts one use. Returns true if none was left.
fn spend(left: &mut Option<u64>) -> bool {
    match left {
        None => false,
        Some(0) => true,
        Some(left) => {
            *left -= 1;
            false
        }
    }
}

/// EIO, which has no [`io::ErrorKind`] of its own.
fn input_output_error() -> io::Error {
    io::Error::from_raw_os_error(5)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
