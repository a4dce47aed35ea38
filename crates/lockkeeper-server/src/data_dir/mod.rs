//! The data folder of a node: its identity, and the lock against other processes.
//!
//! ```text
//! identity.json   the cell and the node that the folder belongs to
//! lock            locked while a process uses the folder; contains its process ID
//! log/            the log
//! snapshot/       the current snapshot
//! ```

pub(crate) mod private_files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::CellVersion;
use serde::{Deserialize, Serialize};

use self::private_files::{Insecure, Inventory};
use crate::formation::cell_secret::{CellSecret, Parties};
use crate::raft::log::REPAIR;
use crate::raft::types::Member;

const IDENTITY: &str = "identity.json";
const NEW_IDENTITY: &str = "identity.json.new";
const LOCK: &str = "lock";
const LOG: &str = "log";
const SNAPSHOT: &str = "snapshot";
const FORMAT: u32 = 1;
/// Interval at which the node checks that the folder still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Identity of a data folder: the cell and the node that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Format of the folder.
    pub format: u32,
    /// Name of the cell, generated when it was formed. Empty until the node belongs to a cell.
    pub cell: String,
    /// Secret that the members of the cell share. `None` until the node belongs to a cell.
    #[serde(default)]
    pub secret: Option<CellSecret>,
    /// ID of the node.
    pub node_id: u64,
    /// Random ID of the folder, generated when it was created. The other members identify the node's data by it.
    #[serde(default)]
    pub folder: u64,
    /// Cell version, as far as this node knows.
    #[serde(default)]
    pub cell_version: CellVersion,
    /// Initial members of the cell, on the node that formed it.
    #[serde(default)]
    pub founding: BTreeMap<u64, Member>,
    /// Member list with which the folder was first used.
    #[serde(default, rename = "given")]
    pub configured: BTreeMap<u64, String>,
    /// Longest promise to a leader that may still hold (`raft/promise.rs`).
    #[serde(default)]
    pub promise_ms: u64,
    /// Nodes that this node has seen leave the cell (`raft/departed.rs`).
    #[serde(default)]
    pub departed: BTreeSet<u64>,
    /// Log index of the membership change after which `departed` was recorded.
    #[serde(default)]
    pub departed_through: Option<u64>,
}

impl Identity {
    /// Creates a proof for another node that this one belongs to the cell. Empty if it belongs to none.
    pub(crate) fn proof(&self, to: u64, to_folder: u64) -> Vec<u8> {
        let parties = Parties { cell: &self.cell, from: self.node_id, to, to_folder };
        self.secret.as_ref().map_or_else(Vec::new, |secret| secret.prove(parties))
    }
}

/// Data folder that is locked for this process. For a node without a data folder, only the identity.
#[derive(Debug)]
pub struct DataDir {
    folder: Option<Folder>,
    identity: Mutex<Identity>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// The folder that was opened, even if its path is replaced later.
    inode: Inode,
    /// Holds the lock while it is `Some`.
    lock: Mutex<Option<File>>,
}

/// Distinguishes a folder from one that replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    fn of(path: &Path) -> io::Result<Inode> {
        let found = fs::metadata(path)?;
        Ok(Inode { device: found.dev(), number: found.ino() })
    }
}

/// Reason why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The system refuses access.
    #[error(
        "the data folder {} cannot be used: {error}. Choose a folder that this user may write with --data-dir",
        path.display()
    )]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Another process uses the folder.
    #[error(
        "the data folder {} is in use by another process{}: stop that one, or choose another folder with \
         --data-dir",
        path.display(),
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The other process.
        pid: Option<u32>,
    },
    /// The folder belongs to another node.
    #[error(
        "the data folder {} belongs to node {found}, not to node {requested}: start it with --node-id {found}, or \
         give this node its own folder with --data-dir",
        path.display()
    )]
    OtherNode {
        /// The folder.
        path: PathBuf,
        /// The node it belongs to.
        found: u64,
        /// The node that should be started.
        requested: u64,
    },
    /// Other users can read or change the files.
    #[error(
        "the data folder is not safe: {}: {what}. If its file system has no owners or modes, pass --allow-insecure-files",
        path.display()
    )]
    Insecure {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// The content of the folder is inconsistent, unreadable or not from this program.
    #[error("{}: {what}", path.display())]
    Mismatch {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
}

/// What to do with files that other users can read or change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsecureFiles {
    /// Refuse them.
    Refused,
    /// Warn: the file system may have no owners or modes.
    Allowed,
}

impl InsecureFiles {
    fn check(self, found: Vec<Insecure>) -> Result<(), DataDirError> {
        let count = found.len();
        match (self, found.into_iter().next()) {
            (_, None) => Ok(()),
            (InsecureFiles::Refused, Some(Insecure { path, what })) => {
                Err(DataDirError::Insecure { path, what })
            }
            (InsecureFiles::Allowed, Some(Insecure { path, what })) => {
                tracing::warn!(path = %path.display(), what, count, "the data folder is not safe");
                Ok(())
            }
        }
    }
}

impl DataDir {
    /// Opens the folder for a node, and creates it if it does not exist.
    pub fn open(
        path: &Path,
        node_id: Option<u64>,
        insecure_files: InsecureFiles,
    ) -> Result<DataDir, DataDirError> {
        let io_error = |error| DataDirError::Io { path: path.to_owned(), error };
        private_files::create_folder(path).map_err(io_error)?;
        // Before anything in it is trusted. The folder may have been created by something else, or by an older version.
        let mut inventory = take_inventory(path).map_err(io_error)?;
        insecure_files.check(inventory.take_foreign())?;
        insecure_files.check(inventory.restrict().map_err(io_error)?)?;
        let lock = lock(path)?;
        let identity = match private_files::read(&path.join(IDENTITY)) {
            Ok(bytes) => read_identity(path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => initialize(path, node_id.unwrap_or(1))?,
            Err(error) => return Err(io_error(error)),
        };
        if let Some(requested) = node_id
            && requested != identity.node_id
        {
            return Err(DataDirError::OtherNode {
                path: path.to_owned(),
                found: identity.node_id,
                requested,
            });
        }
        let inode = Inode::of(path).map_err(io_error)?;
        let folder = Some(Folder { path: path.to_owned(), inode, lock: Mutex::new(Some(lock)) });
        Ok(DataDir { folder, identity: Mutex::new(identity) })
    }

    /// Creates the identity of a node without a data folder.
    pub fn in_memory(node_id: u64) -> Result<DataDir, DataDirError> {
        let error = |error| DataDirError::Io { path: PathBuf::new(), error };
        Ok(DataDir { folder: None, identity: Mutex::new(new_identity(node_id).map_err(error)?) })
    }

    /// Releases the lock after the node has stopped, even if other handles of this value still exist.
    pub(crate) fn unlock(&self) {
        if let Some(folder) = &self.folder {
            folder.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Waits until the folder, or something in it, is deleted or replaced. Returns a description. Otherwise the open files
    /// would accept writes as long as the process lives, and everything acknowledged would be lost with it (S10). `has_files`
    /// reports whether the files of the log and the snapshot still exist.
    pub(crate) async fn wait_until_gone(&self, has_files: impl Fn() -> bool) -> String {
        let Some(folder) = &self.folder else { return std::future::pending().await };
        // A simulated disk keeps the log elsewhere.
        let log = Inode::of(&folder.path.join(LOG)).ok();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let exists = Inode::of(&folder.path).is_ok_and(|found| found == folder.inode);
            let has_log = Inode::of(&folder.path.join(LOG)).ok() == log;
            if exists && has_log && folder.path.join(IDENTITY).is_file() && has_files() {
                continue;
            }
            return format!(
                "the data folder {} or a file in it was deleted or replaced while the node was running, so nothing that it acknowledges \
                 would be durable. Bring the folder back before you start the node again; if it is lost and the cell has \
                 other members, remove this node from the cell and add it again with an empty folder, otherwise restore a \
                 backup (lockkeeper snapshot restore)",
                folder.path.display()
            );
        }
    }

    fn lock_identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the identity.
    pub fn identity(&self) -> Identity {
        self.lock_identity().clone()
    }

    /// Returns the name of the cell that the node belongs to, if it belongs to one.
    pub fn cell(&self) -> Option<String> {
        Some(self.lock_identity().cell.clone()).filter(|cell| !cell.is_empty())
    }

    /// Makes the node a part of this cell. Durable on return.
    pub fn join(&self, cell: &str, secret: CellSecret, founding: BTreeMap<u64, Member>) -> io::Result<()> {
        self.change(|identity| {
            identity.cell = cell.to_owned();
            identity.secret = Some(secret);
            identity.founding = founding;
        })
    }

    /// Records the member list with which the folder is first used.
    pub fn remember_configured(&self, configured: &BTreeMap<u64, String>) -> io::Result<()> {
        self.change(|identity| identity.configured = configured.clone())
    }

    /// Records the cell version.
    pub fn remember_cell_version(&self, version: CellVersion) -> io::Result<()> {
        self.change(|identity| identity.cell_version = version)
    }

    /// Records the promise that the node gives to leaders. Durable on return.
    pub(crate) fn remember_promise(&self, promise_ms: u64) -> io::Result<()> {
        self.change(|identity| identity.promise_ms = promise_ms)
    }

    /// Records the nodes that have left the cell. Durable on return.
    pub(crate) fn remember_departed(&self, departed: BTreeSet<u64>, through: Option<u64>) -> io::Result<()> {
        self.change(|identity| {
            identity.departed = departed;
            identity.departed_through = through;
        })
    }

    fn change(&self, change: impl FnOnce(&mut Identity)) -> io::Result<()> {
        let mut current = self.lock_identity();
        let mut identity = current.clone();
        change(&mut identity);
        if let Some(folder) = &self.folder {
            write_identity(&folder.path, &identity)?;
        }
        *current = identity;
        Ok(())
    }

    /// Returns the folder of the log, if it is on disk.
    pub fn log(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.path.join(LOG))
    }

    /// Returns the folder of the snapshot, if it is on disk.
    pub fn snapshot(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.path.join(SNAPSHOT))
    }
}

/// Finds everything in the folder that belongs to a node.
fn take_inventory(folder: &Path) -> io::Result<Inventory> {
    let mut inventory = Inventory::default();
    inventory.add_data_folder(folder)?;
    inventory.add_file(&folder.join(IDENTITY))?;
    for file in [NEW_IDENTITY, LOCK] {
        inventory.add_overwritten_file(&folder.join(file))?;
    }
    for sub_folder in [LOG, SNAPSHOT] {
        inventory.add_folder(&folder.join(sub_folder))?;
    }
    Ok(inventory)
}

fn lock(folder: &Path) -> Result<File, DataDirError> {
    let path = folder.join(LOCK);
    let io_error = |error| DataDirError::Io { path: path.clone(), error };
    let mut file = private_files::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(DataDirError::InUse { path: folder.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(io_error(error)),
    }
    // The process ID is only informational: the lock itself decides.
    file.metadata()
        .and_then(|metadata| private_files::check_only_name(&metadata, &path))
        .and_then(|()| file.set_len(0))
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(io_error)?;
    Ok(file)
}

fn read_identity(folder: &Path, bytes: &[u8]) -> Result<Identity, DataDirError> {
    let mismatch = |what: String| DataDirError::Mismatch { path: folder.join(IDENTITY), what };
    let identity: Identity = serde_json::from_slice(bytes).map_err(|error| {
        mismatch(format!("it cannot be read ({error}), so the owner of this folder is unknown. {REPAIR}"))
    })?;
    if identity.format != FORMAT {
        return Err(mismatch(format!(
            "the folder has format {}, but this version reads format {FORMAT}: use the version that wrote it",
            identity.format
        )));
    }
    Ok(identity)
}

/// Initializes a new folder. Refuses one that has data but no identity.
fn initialize(folder: &Path, node_id: u64) -> Result<Identity, DataDirError> {
    let io_error = |error| DataDirError::Io { path: folder.to_owned(), error };
    if folder.join(LOG).exists() || folder.join(SNAPSHOT).exists() {
        return Err(DataDirError::Mismatch {
            path: folder.to_owned(),
            what: format!(
                "it has a log or a snapshot but no {IDENTITY}: if it is not a data folder of lockkeeper, choose another \
                 folder. {REPAIR}"
            ),
        });
    }
    let identity = new_identity(node_id).map_err(io_error)?;
    write_identity(folder, &identity).map_err(io_error)?;
    Ok(identity)
}

fn new_identity(node_id: u64) -> io::Result<Identity> {
    let mut random = [0; 8];
    lockkeeper_net::random::fill(&mut random).map_err(io::Error::other)?;
    let folder = u64::from_le_bytes(random).max(1);
    Ok(Identity {
        format: FORMAT,
        cell: String::new(),
        secret: None,
        node_id,
        folder,
        cell_version: CellVersion::RELEASED,
        founding: BTreeMap::new(),
        configured: BTreeMap::new(),
        promise_ms: 0,
        departed: BTreeSet::new(),
        departed_through: None,
    })
}

fn write_identity(folder: &Path, identity: &Identity) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(identity).map_err(io::Error::other)?;
    let new = folder.join(NEW_IDENTITY);
    let mut file = private_files::create_empty(&new)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&new, folder.join(IDENTITY))?;
    File::open(folder)?.sync_all()
}
