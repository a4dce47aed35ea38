//! Snapshots on disk: the table with what raft has to know about it, in one checked file.
//!
//! ```text
//! "LKSNAP1\n"   length of the head (u32 LE)   CRC-32 of the head (u32 LE)   head (postcard)   table
//! ```
//! A snapshot is written under another name, made durable and then renamed: under its own name it is whole.

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
use crate::private_files;

const MAGIC: &[u8; 8] = b"LKSNAP1\n";
/// What all formats begin with; the format's number follows as one digit.
const MAGIC_OF_ALL: &[u8; 6] = b"LKSNAP";
const FORMAT: u32 = 1;
const HEAD_BYTES_MAX: usize = 1024 * 1024;
const FILE_NAME: &str = "table.snapshot";
const NEW_FILE_NAME: &str = "table.snapshot.new";
/// So much of a snapshot goes to the disk at once.
const SYNC_BYTES: usize = 1 << 20;
/// After each such portion, it rests for this many times as long as that took: the log shares the disk.
const REST: u32 = 3;
const REST_MAX: Duration = Duration::from_millis(50);
/// After this many commands a snapshot is taken, at the earliest.
pub const COMMANDS_BETWEEN: u64 = 500_000;
/// After as many more for each of these in the last one: what takes longer to write is written less often.
const BYTES_OF_A_LARGE_ONE: u64 = 32 << 20;

/// The bytes of a snapshot: a file, or memory for a node that keeps nothing.
#[derive(Debug, Clone)]
pub struct SnapshotImage {
    place: Place,
    len: u64,
    /// What it holds, if it has just been read.
    content: Option<Arc<(SnapshotMeta, LockTable)>>,
}

#[derive(Debug, Clone)]
enum Place {
    File(PathBuf),
    Memory(Arc<Vec<u8>>),
}

impl SnapshotImage {
    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        self.open_at(0)
    }

    /// Its bytes from here on.
    pub(crate) fn open_at(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        match &self.place {
            Place::File(path) => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(offset))?;
                Ok(Box::new(BufReader::with_capacity(256 * 1024, file)))
            }
            Place::Memory(bytes) => {
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

/// Where the snapshots of a node are.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// None: in memory.
    folder: Option<PathBuf>,
    current: Mutex<Option<(SnapshotMeta, SnapshotImage)>>,
    commands_since: AtomicU64,
    commands_between: u64,
    /// How large the current one is.
    bytes: AtomicU64,
    due: Notify,
    /// Why the last try to write one failed. Stays while another try is under way.
    trouble: Mutex<Option<String>>,
}

/// A snapshot that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    /// The disk did not give it.
    #[error("the snapshot {} cannot be read: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is not what was once written.
    #[error(
        "the snapshot {} is damaged ({what}), and the log before it is gone, so the node does not start. {REPAIR}",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It was written by a version that knows a newer format, or more than this one does.
    #[error("the snapshot {} cannot be read by this version of lockkeeper: {what}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// What is newer, and what to do.
        what: String,
    },
    /// A backup is damaged, or none at all.
    #[error("{} is no backup that can be used ({what}): take another one", path.display())]
    NoBackup {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl SnapshotStore {
    /// In this folder, or in memory. Reads the newest snapshot, if there is one, and checks all of it.
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
        // A file under this name was never finished.
        match fs::remove_file(folder.join(NEW_FILE_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(error)),
            _ => {}
        }
        let len = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((store, None)),
            Err(error) => return Err(io_error(error)),
        };
        let image = SnapshotImage { place: Place::File(path.clone()), len, content: None };
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

    /// Counts commands that were applied; enough of them make a snapshot due.
    pub(crate) fn count(&self, commands: u64) {
        let larger = self.inner.bytes.load(Ordering::Relaxed) / BYTES_OF_A_LARGE_ONE;
        let between = self.inner.commands_between.max(1).saturating_mul(1 + larger);
        let before = self.inner.commands_since.fetch_add(commands, Ordering::Relaxed);
        // Each time the mark is passed: raft ignores a wish that comes while a snapshot is being written.
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

    /// Why no snapshot can be written, if the last try failed.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a snapshot and makes it the current one. Returns the current one.
    pub(crate) fn write(
        &self,
        meta: &SnapshotMeta,
        table: &LockTable,
    ) -> io::Result<(SnapshotMeta, SnapshotImage)> {
        let written = self.try_to_write(meta, table);
        let trouble = written.as_ref().err().map(ToString::to_string);
        *self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        written
    }

    fn try_to_write(
        &self,
        meta: &SnapshotMeta,
        table: &LockTable,
    ) -> io::Result<(SnapshotMeta, SnapshotImage)> {
        self.inner.commands_since.store(0, Ordering::Relaxed);
        let head = postcard::to_stdvec(meta).map_err(io::Error::other)?;
        let mut start = MAGIC.to_vec();
        start.extend_from_slice(&(head.len() as u32).to_le_bytes());
        start.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
        start.extend_from_slice(&head);
        let chunks = std::iter::once(start).chain(table.snapshot());
        match &self.inner.folder {
            None => {
                let bytes: Vec<u8> = chunks.flatten().collect();
                let len = bytes.len() as u64;
                self.put(meta, SnapshotImage { place: Place::Memory(Arc::new(bytes)), len, content: None })
            }
            Some(folder) => self.put(meta, write_file(folder, chunks)?),
        }
    }

    /// Makes a snapshot the current one, if it is the newest: one that was being written while a newer one
    /// came from another member must not take its place, because the log goes on behind the newer one.
    fn put(
        &self,
        meta: &SnapshotMeta,
        mut image: SnapshotImage,
    ) -> io::Result<(SnapshotMeta, SnapshotImage)> {
        image.content = None;
        let mut current = self.inner.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((newer, there)) = &*current
            && newer.last_log_id > meta.last_log_id
        {
            if let Place::File(path) = &image.place {
                fs::remove_file(path)?;
            }
            return Ok((newer.clone(), there.clone()));
        }
        if let (Place::File(written), Some(folder)) = (&image.place, &self.inner.folder) {
            // It is durable already: only its name is not.
            let path = folder.join(FILE_NAME);
            fs::rename(written, &path)?;
            File::open(folder)?.sync_all()?;
            image.place = Place::File(path);
        }
        self.inner.bytes.store(image.len, Ordering::Relaxed);
        *current = Some((meta.clone(), image.clone()));
        Ok((meta.clone(), image))
    }

    /// Reads and checks a backup.
    pub(crate) fn read_backup(path: &Path) -> Result<(SnapshotMeta, LockTable), SnapshotReadError> {
        let io_error = |error| SnapshotReadError::Io { path: path.to_owned(), error };
        let len = fs::metadata(path).map_err(io_error)?.len();
        read(&SnapshotImage { place: Place::File(path.to_owned()), len, content: None }).map_err(|error| {
            match error {
                ReadError::Io(error) => io_error(error),
                ReadError::Newer(what) => SnapshotReadError::Newer { path: path.to_owned(), what },
                ReadError::Damaged(what) => SnapshotReadError::NoBackup { path: path.to_owned(), what },
            }
        })
    }

    /// Writes the table for a cell of which this node is the only member.
    pub(crate) fn write_alone(
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
        self.write(&SnapshotMeta { last_membership, ..meta.clone() }, table)?;
        Ok(())
    }

    /// Where a snapshot of another member arrives.
    pub(crate) fn incoming(&self) -> Incoming {
        Incoming::new(self.inner.folder.clone())
    }

    /// Takes over a snapshot that came from elsewhere, if it is whole and the one that was announced.
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
                "this is another snapshot than announced",
            ));
        }
        self.inner.commands_since.store(0, Ordering::Relaxed);
        self.put(&meta, image.clone())?;
        Ok(table)
    }
}

fn write_file(folder: &Path, chunks: impl Iterator<Item = Vec<u8>>) -> io::Result<SnapshotImage> {
    let path = folder.join(NEW_FILE_NAME);
    let mut file = private_files::options().write(true).create(true).truncate(true).open(&path)?;
    let (mut len, mut unsynced) = (0, 0);
    let mut began = Instant::now();
    for chunk in chunks {
        file.write_all(&chunk)?;
        len += chunk.len() as u64;
        unsynced += chunk.len();
        // In small portions: the log shares the disk, and its next sync must not wait behind all of this.
        if unsynced >= SYNC_BYTES {
            file.sync_data()?;
            unsynced = 0;
            std::thread::sleep((began.elapsed() * REST).min(REST_MAX));
            began = Instant::now();
        }
    }
    file.sync_all()?;
    Ok(SnapshotImage { place: Place::File(path), len, content: None })
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
        if magic.starts_with(MAGIC_OF_ALL)
            && let Some(found) = char::from(magic[MAGIC_OF_ALL.len()]).to_digit(10)
        {
            return Err(ReadError::Newer(format!(
                "it has format {found}, and this version reads format {FORMAT}: use the version that wrote it, \
                 or a newer one"
            )));
        }
        return Err(ReadError::Damaged("it does not begin like a snapshot of this version".to_owned()));
    }
    let number =
        |at: usize| u32::from_le_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]);
    let (head_len, head_crc) = (number(0) as usize, number(4));
    if head_len > HEAD_BYTES_MAX {
        return Err(ReadError::Damaged("the length of its head is impossible".to_owned()));
    }
    let mut head = vec![0; head_len];
    read_exact(&mut bytes, &mut head)?;
    if crc32fast::hash(&head) != head_crc {
        return Err(ReadError::Damaged("the checksum of its head does not fit".to_owned()));
    }
    let meta: SnapshotMeta =
        postcard::from_bytes(&head).map_err(|error| ReadError::Damaged(format!("its head: {error}")))?;
    let mut restore = Restore::new();
    let mut piece = vec![0; 256 * 1024];
    loop {
        let count = bytes.read(&mut piece).map_err(ReadError::Io)?;
        if count == 0 {
            break;
        }
        restore.push(&piece[..count])?;
    }
    let table = restore.finish()?;
    let through = meta.last_log_id.map_or(0, |id| id.index + 1);
    if table.applied() != through {
        return Err(ReadError::Damaged("its head and its table are of different entries".to_owned()));
    }
    Ok((meta, table))
}

fn read_exact(bytes: &mut dyn Read, into: &mut [u8]) -> Result<(), ReadError> {
    bytes.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::Damaged("it ends too early".to_owned()),
        _ => ReadError::Io(error),
    })
}
