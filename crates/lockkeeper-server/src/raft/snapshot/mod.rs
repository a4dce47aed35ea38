//! Snapshots on disk: the table and raft's metadata, in one file with checksums.
//!
//! ```text
//! "LKSNAP1\n"   length of the header (u32 LE)   CRC-32 of the header (u32 LE)   header (postcard)   table
//! ```
//! A snapshot is written under a temporary name, made durable and then renamed: under its final name it is complete.

pub(crate) mod incoming;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_core::{LockTable, Restore, SnapshotError};
use openraft::Membership;
use tokio::sync::Notify;

use self::incoming::Incoming;
use super::log::REPAIR;
use super::types::{Member, SnapshotMeta, StoredMembership};
use crate::data_dir::private_files;

const MAGIC: &[u8; 8] = b"LKSNAP1\n";
/// Common prefix of all formats. The format's number follows as one digit.
const MAGIC_PREFIX: &[u8; 6] = b"LKSNAP";
const FORMAT: u32 = 1;
const HEADER_BYTES_MAX: usize = 1024 * 1024;
const FILE_NAME: &str = "table.snapshot";
const NEW_FILE_NAME: &str = "table.snapshot.new";
/// Bytes of a snapshot that are written between two syncs.
const SYNC_BYTES: usize = 1 << 20;
/// Pause after each sync, as a multiple of the time that the portion took: the log shares the disk.
const PAUSE_FACTOR: u32 = 3;
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Minimum number of commands between two snapshots.
pub const COMMANDS_BETWEEN: u64 = 500_000;
/// Size unit of the last snapshot: each whole unit adds the minimum number of commands again, so large snapshots are written less often.
const LARGE_SNAPSHOT_BYTES: u64 = 32 << 20;

/// Bytes of a snapshot: a file, or memory for a node without a data folder.
#[derive(Debug, Clone)]
pub struct SnapshotImage {
    storage: Storage,
    len: u64,
    /// Decoded content, if it has just been read.
    content: Option<Arc<(SnapshotMeta, LockTable)>>,
}

#[derive(Debug, Clone)]
enum Storage {
    File(PathBuf),
    Memory(Arc<Vec<u8>>),
}

impl SnapshotImage {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reports whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        self.open_at(0)
    }

    /// Opens it for reading at this offset.
    pub(crate) fn open_at(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        match &self.storage {
            Storage::File(path) => {
                let mut file = private_files::options().read(true).open(path)?;
                file.seek(SeekFrom::Start(offset))?;
                Ok(Box::new(BufReader::with_capacity(256 * 1024, file)))
            }
            Storage::Memory(bytes) => {
                let mut cursor = io::Cursor::new(SharedBytes(bytes.clone()));
                cursor.set_position(offset);
                Ok(Box::new(cursor))
            }
        }
    }
}

struct SharedBytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Store of a node's snapshots.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None`: in memory.
    folder: Option<PathBuf>,
    current: Mutex<Option<(SnapshotMeta, SnapshotImage)>>,
    commands_since: AtomicU64,
    commands_between: u64,
    /// Size of the current snapshot.
    bytes: AtomicU64,
    due: Notify,
    /// Why the last attempt to write a snapshot failed. Kept during the next attempt.
    trouble: Mutex<Option<String>>,
}

/// Reason why a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    /// The disk failed.
    #[error("failed to read the snapshot {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The snapshot is damaged.
    #[error(
        "the snapshot {} is damaged ({what}), and the log entries that it replaced are deleted, so the node does not start. {REPAIR}",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// The snapshot was written by a newer version.
    #[error("this version of lockkeeper can't read the snapshot {}: {what}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// What is newer, and what to do.
        what: String,
    },
    /// The backup is damaged, or the file is not a backup.
    #[error("{} is not a usable backup ({what}): use another one", path.display())]
    InvalidBackup {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
}

impl SnapshotStore {
    /// Opens the store in this folder, or in memory. Reads and verifies the current snapshot, if there is one.
    pub fn open(
        folder: Option<&Path>,
        commands_between: u64,
    ) -> Result<(SnapshotStore, Option<(SnapshotMeta, LockTable)>), SnapshotReadError> {
        let inner = Inner {
            folder: folder.map(Path::to_owned),
            current: Mutex::new(None),
            commands_since: AtomicU64::new(0),
            commands_between,
            bytes: AtomicU64::new(0),
            due: Notify::new(),
            trouble: Mutex::new(None),
        };
        let store = SnapshotStore { inner: Arc::new(inner) };
        let Some(folder) = folder else { return Ok((store, None)) };
        let path = folder.join(FILE_NAME);
        let io_error = |error| SnapshotReadError::Io { path: path.clone(), error };
        private_files::create_folder(folder).map_err(io_error)?;
        // A file of this name is incomplete.
        match fs::remove_file(folder.join(NEW_FILE_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(error)),
            _ => {}
        }
        let len = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((store, None)),
            Err(error) => return Err(io_error(error)),
        };
        let image = SnapshotImage { storage: Storage::File(path.clone()), len, content: None };
        let (meta, table) = match read(&image) {
            Ok(found) => found,
            Err(ReadError::Io(error)) => return Err(io_error(error)),
            Err(ReadError::Newer(what)) => return Err(SnapshotReadError::Newer { path, what }),
            Err(ReadError::Damaged(what)) => return Err(SnapshotReadError::Damaged { path, what }),
        };
        *store.inner.current.lock().unwrap_or_else(PoisonError::into_inner) = Some((meta.clone(), image));
        store.inner.bytes.store(len, Ordering::Relaxed);
        Ok((store, Some((meta, table))))
    }

    /// Counts applied commands. Signals that a snapshot is due when there are enough of them.
    pub(crate) fn count_commands(&self, commands: u64) {
        let larger = self.inner.bytes.load(Ordering::Relaxed) / LARGE_SNAPSHOT_BYTES;
        let between = self.inner.commands_between.max(1).saturating_mul(1 + larger);
        let before = self.inner.commands_since.fetch_add(commands, Ordering::Relaxed);
        // Signals every time a multiple is passed: raft ignores a trigger while a snapshot is being written.
        if (before + commands) / between > before / between {
            self.inner.due.notify_one();
        }
    }

    /// Waits until a snapshot is due.
    pub(crate) async fn due(&self) {
        self.inner.due.notified().await;
    }

    pub(crate) fn current(&self) -> Option<(SnapshotMeta, SnapshotImage)> {
        self.inner.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports whether the folder and the current snapshot still exist. The log no longer has the entries that the snapshot
    /// covers.
    pub(crate) fn has_files(&self) -> bool {
        let current = self.inner.current.lock().unwrap_or_else(PoisonError::into_inner);
        let has_image = current.as_ref().is_none_or(|(_, image)| match &image.storage {
            Storage::File(path) => path.is_file(),
            Storage::Memory(_) => true,
        });
        has_image && self.inner.folder.as_ref().is_none_or(|folder| folder.is_dir())
    }

    /// Returns why the last attempt to write a snapshot failed, if it did.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a snapshot and makes it the current one, unless there is a newer one. Returns the current one. `None`, and nothing
    /// is replaced, if `may_save` is false before or after the snapshot is written.
    pub(crate) fn write(
        &self,
        meta: &SnapshotMeta,
        table: &LockTable,
        may_save: impl Fn() -> bool,
    ) -> io::Result<Option<(SnapshotMeta, SnapshotImage)>> {
        let written = self.try_write(meta, table, may_save);
        let trouble = written.as_ref().err().map(ToString::to_string);
        *self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        written
    }

    fn try_write(
        &self,
        meta: &SnapshotMeta,
        table: &LockTable,
        may_save: impl Fn() -> bool,
    ) -> io::Result<Option<(SnapshotMeta, SnapshotImage)>> {
        if !may_save() {
            return Ok(None);
        }
        self.inner.commands_since.store(0, Ordering::Relaxed);
        let header = postcard::to_stdvec(meta).map_err(io::Error::other)?;
        let mut start = MAGIC.to_vec();
        start.extend_from_slice(&(header.len() as u32).to_le_bytes());
        start.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        start.extend_from_slice(&header);
        let chunks = std::iter::once(start).chain(table.snapshot());
        let image = match &self.inner.folder {
            None => {
                let bytes: Vec<u8> = chunks.flatten().collect();
                let len = bytes.len() as u64;
                SnapshotImage { storage: Storage::Memory(Arc::new(bytes)), len, content: None }
            }
            Some(folder) => write_file(folder, chunks)?,
        };
        if !may_save() {
            if let Storage::File(path) = &image.storage {
                fs::remove_file(path)?;
            }
            return Ok(None);
        }
        self.set_current(meta, image).map(Some)
    }

    /// Makes a snapshot the current one, unless there is a newer one. If a newer one arrived from another member while
    /// this one was written, it must stay, because the log continues after the newer one.
    fn set_current(
        &self,
        meta: &SnapshotMeta,
        mut image: SnapshotImage,
    ) -> io::Result<(SnapshotMeta, SnapshotImage)> {
        image.content = None;
        let mut current = self.inner.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((newer, newer_image)) = &*current
            && newer.last_log_id > meta.last_log_id
        {
            if let Storage::File(path) = &image.storage {
                fs::remove_file(path)?;
            }
            return Ok((newer.clone(), newer_image.clone()));
        }
        if let (Storage::File(written), Some(folder)) = (&image.storage, &self.inner.folder) {
            // The content is already durable, only the name is not.
            let path = folder.join(FILE_NAME);
            fs::rename(written, &path)?;
            File::open(folder)?.sync_all()?;
            image.storage = Storage::File(path);
        }
        self.inner.bytes.store(image.len, Ordering::Relaxed);
        *current = Some((meta.clone(), image.clone()));
        Ok((meta.clone(), image))
    }

    /// Reads and verifies a backup.
    pub(crate) fn read_backup(path: &Path) -> Result<(SnapshotMeta, LockTable), SnapshotReadError> {
        let io_error = |error| SnapshotReadError::Io { path: path.to_owned(), error };
        let len = fs::metadata(path).map_err(io_error)?.len();
        // The operator's own file, which may be behind a link.
        let file = fs::canonicalize(path).map_err(io_error)?;
        read(&SnapshotImage { storage: Storage::File(file), len, content: None }).map_err(|error| match error
        {
            ReadError::Io(error) => io_error(error),
            ReadError::Newer(what) => SnapshotReadError::Newer { path: path.to_owned(), what },
            ReadError::Damaged(what) => SnapshotReadError::InvalidBackup { path: path.to_owned(), what },
        })
    }

    /// Writes the table as the snapshot of a cell with this node as its only member.
    pub(crate) fn write_single_member(
        &self,
        meta: &SnapshotMeta,
        table: &LockTable,
        node_id: u64,
        member: Member,
    ) -> io::Result<()> {
        let membership =
            Membership::new(vec![BTreeSet::from([node_id])], BTreeMap::from([(node_id, member)]))
                .map_err(io::Error::other)?;
        let last_membership = StoredMembership::new(meta.last_log_id, membership);
        self.write(&SnapshotMeta { last_membership, ..meta.clone() }, table, || true)?;
        Ok(())
    }

    /// Returns the receiver of snapshots from other members.
    pub(crate) fn incoming(&self) -> Incoming {
        Incoming::new(self.inner.folder.clone())
    }

    /// Makes a received snapshot the current one, if it is complete and matches its announcement.
    pub(crate) fn install(&self, expected: &SnapshotMeta, image: &SnapshotImage) -> io::Result<LockTable> {
        let (meta, table) = match &image.content {
            Some(content) => (**content).clone(),
            None => read(image).map_err(|error| match error {
                ReadError::Io(error) => error,
                ReadError::Newer(what) | ReadError::Damaged(what) => {
                    io::Error::new(io::ErrorKind::InvalidData, what)
                }
            })?,
        };
        if meta != *expected {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the snapshot does not match its announcement",
            ));
        }
        self.inner.commands_since.store(0, Ordering::Relaxed);
        self.set_current(&meta, image.clone())?;
        Ok(table)
    }
}

fn write_file(folder: &Path, chunks: impl Iterator<Item = Vec<u8>>) -> io::Result<SnapshotImage> {
    let path = folder.join(NEW_FILE_NAME);
    let mut file = private_files::create_empty(&path)?;
    let (mut len, mut unsynced) = (0, 0);
    let mut began = Instant::now();
    for chunk in chunks {
        file.write_all(&chunk)?;
        len += chunk.len() as u64;
        unsynced += chunk.len();
        // In small portions: the log shares the disk, and its next sync must not wait for the whole snapshot.
        if unsynced >= SYNC_BYTES {
            file.sync_data()?;
            unsynced = 0;
            std::thread::sleep((began.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX));
            began = Instant::now();
        }
    }
    file.sync_all()?;
    Ok(SnapshotImage { storage: Storage::File(path), len, content: None })
}

enum ReadError {
    Io(io::Error),
    Newer(String),
    Damaged(String),
}

impl From<SnapshotError> for ReadError {
    fn from(error: SnapshotError) -> ReadError {
        match error {
            SnapshotError::Format { .. } | SnapshotError::Newer { .. } => ReadError::Newer(error.to_string()),
            SnapshotError::Incomplete { .. } | SnapshotError::Damaged { .. } => {
                ReadError::Damaged(error.to_string())
            }
        }
    }
}

fn read(image: &SnapshotImage) -> Result<(SnapshotMeta, LockTable), ReadError> {
    let mut bytes = image.open().map_err(ReadError::Io)?;
    let mut start = [0; 16];
    read_exact(&mut bytes, &mut start)?;
    let (magic, numbers) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        if magic.starts_with(MAGIC_PREFIX)
            && let Some(found) = char::from(magic[MAGIC_PREFIX.len()]).to_digit(10)
        {
            return Err(ReadError::Newer(format!(
                "it has format {found}, and this version reads format {FORMAT}: use the version that wrote it, \
                 or a newer one"
            )));
        }
        return Err(ReadError::Damaged("it does not start like a snapshot".to_owned()));
    }
    let number =
        |at: usize| u32::from_le_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]);
    let (header_len, header_crc) = (number(0) as usize, number(4));
    if header_len > HEADER_BYTES_MAX {
        return Err(ReadError::Damaged("the length of its header is invalid".to_owned()));
    }
    let mut header = vec![0; header_len];
    read_exact(&mut bytes, &mut header)?;
    if crc32fast::hash(&header) != header_crc {
        return Err(ReadError::Damaged("its header fails its checksum".to_owned()));
    }
    let meta: SnapshotMeta = postcard::from_bytes(&header)
        .map_err(|error| ReadError::Damaged(format!("its header can't be decoded: {error}")))?;
    let mut restore = Restore::new();
    let mut chunk = vec![0; 256 * 1024];
    loop {
        let count = bytes.read(&mut chunk).map_err(ReadError::Io)?;
        if count == 0 {
            break;
        }
        restore.push(&chunk[..count])?;
    }
    let table = restore.finish()?;
    let through = meta.last_log_id.map_or(0, |id| id.index + 1);
    if table.applied() != through {
        return Err(ReadError::Damaged("its header and its table belong to different entries".to_owned()));
    }
    Ok((meta, table))
}

fn read_exact(bytes: &mut dyn Read, into: &mut [u8]) -> Result<(), ReadError> {
    bytes.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::Damaged("it ends too early".to_owned()),
        _ => ReadError::Io(error),
    })
}
