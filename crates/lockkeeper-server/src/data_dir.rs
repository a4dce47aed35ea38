//! The folder of a node: whose it is, and that only one process works in it.
//!
//! ```text
//! identity.json   the cell and the node that the folder belongs to
//! lock            locked while a process works here; holds its process id
//! log/            the log
//! snapshot/       the newest snapshot
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::CellVersion;
use serde::{Deserialize, Serialize};

use crate::cell_secret::{CellSecret, Parties};
use crate::private_files;
use crate::raft::log::REPAIR;
use crate::raft::types::Member;

const IDENTITY: &str = "identity.json";
const LOCK: &str = "lock";
const FORMAT: u32 = 1;
/// How often it is checked that the folder is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whose folder it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The format of the folder.
    pub format: u32,
    /// The cell: a name drawn at random when it was formed. Empty until the node belongs to one.
    pub cell: String,
    /// The secret that the members of the cell share; `None` until the node belongs to one.
    #[serde(default)]
    pub secret: Option<CellSecret>,
    /// The node.
    pub node_id: u64,
    /// The folder itself: a number drawn at random when it was made. The other members know this node by it.
    #[serde(default)]
    pub folder: u64,
    /// The version of the cell, as far as this node has learnt it.
    #[serde(default)]
    pub cell_version: CellVersion,
    /// The members that the cell was to be formed with, on the node that founded it.
    #[serde(default)]
    pub founding: BTreeMap<u64, Member>,
    /// The list of members that the folder was first used with.
    #[serde(default)]
    pub given: BTreeMap<u64, String>,
    /// The longest promise that the node can have given to a leader and may not have kept yet (`raft/promise.rs`).
    #[serde(default)]
    pub promise_ms: u64,
}

impl Identity {
    /// Proves to another node that this one belongs to the cell. Empty if it belongs to none.
    pub(crate) fn proof(&self, to: u64, to_folder: u64) -> Vec<u8> {
        let parties = Parties { cell: &self.cell, from: self.node_id, to, to_folder };
        self.secret.as_ref().map_or_else(Vec::new, |secret| secret.prove(parties))
    }
}

/// A folder that this process has for itself; or, for a node that keeps nothing, only the identity.
#[derive(Debug)]
pub struct DataDir {
    place: Option<Place>,
    identity: Mutex<Identity>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// The folder that was opened, whatever is at its path later.
    inode: Inode,
    /// Locked as long as it is there.
    lock: Mutex<Option<File>>,
}

/// Tells a folder from one that takes its place.
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

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The system does not let us.
    #[error(
        "the data folder {} cannot be used: {error}. Choose a folder that this user may write with --data-dir",
        path.display()
    )]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another process works in it.
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
    /// It belongs to another node.
    #[error(
        "the data folder {} belongs to node {found}, not to node {asked}: start it with --node-id {found}, or \
         give this node a folder of its own with --data-dir",
        path.display()
    )]
    OtherNode {
        /// The folder.
        path: PathBuf,
        /// The node it belongs to.
        found: u64,
        /// The node that was to be started.
        asked: u64,
    },
    /// It has files in it that are none of ours, or its identity is unreadable.
    #[error("{}: {what}", path.display())]
    Strange {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
}

impl DataDir {
    /// Opens the folder for a node, or makes it if it is not there.
    pub fn open(path: &Path, node_id: Option<u64>) -> Result<DataDir, DataDirError> {
        let io_error = |error| DataDirError::Io { path: path.to_owned(), error };
        private_files::create_folder(path).map_err(io_error)?;
        let lock = lock(path)?;
        let identity = match fs::read(path.join(IDENTITY)) {
            Ok(bytes) => read_identity(path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => found(path, node_id.unwrap_or(1))?,
            Err(error) => return Err(io_error(error)),
        };
        if let Some(asked) = node_id
            && asked != identity.node_id
        {
            return Err(DataDirError::OtherNode { path: path.to_owned(), found: identity.node_id, asked });
        }
        // It is a folder of ours now, whoever made it.
        private_files::close_folder(path).map_err(io_error)?;
        let inode = Inode::of(path).map_err(io_error)?;
        let place = Some(Place { path: path.to_owned(), inode, lock: Mutex::new(Some(lock)) });
        Ok(DataDir { place, identity: Mutex::new(identity) })
    }

    /// For a node that keeps nothing.
    pub fn in_memory(node_id: u64) -> Result<DataDir, DataDirError> {
        let error = |error| DataDirError::Io { path: PathBuf::new(), error };
        Ok(DataDir { place: None, identity: Mutex::new(new_identity(node_id).map_err(error)?) })
    }

    /// The node has stopped: another process may work in the folder, whoever still knows of this one.
    pub(crate) fn unlock(&self) {
        if let Some(place) = &self.place {
            place.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Ends when the folder, or the log in it, was deleted or replaced; says what happened. The open files would take
    /// writes for as long as the process lives, and everything that was acknowledged would be gone with it (S10).
    pub(crate) async fn until_gone(&self) -> String {
        let Some(place) = &self.place else { return std::future::pending().await };
        // A simulated disk keeps the log elsewhere.
        let log = Inode::of(&place.path.join("log")).ok();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let is_there = Inode::of(&place.path).is_ok_and(|found| found == place.inode);
            let has_log = Inode::of(&place.path.join("log")).ok() == log;
            if is_there && has_log && place.path.join(IDENTITY).is_file() {
                continue;
            }
            return format!(
                "the data folder {} was deleted or replaced while the node was running, so nothing it acknowledges would \
                 survive it. Bring the folder back before you start it again; if it is lost and the cell has other \
                 members, remove this node from the cell and add it again with an empty folder, otherwise restore a \
                 backup (lockkeeper snapshot restore)",
                place.path.display()
            );
        }
    }

    fn known(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose it is.
    pub fn identity(&self) -> Identity {
        self.known().clone()
    }

    /// The cell that the node belongs to, if it belongs to one.
    pub fn cell(&self) -> Option<String> {
        Some(self.known().cell.clone()).filter(|cell| !cell.is_empty())
    }

    /// From now on the node belongs to this cell. Durable on return.
    pub fn join(&self, cell: &str, secret: CellSecret, founding: BTreeMap<u64, Member>) -> io::Result<()> {
        self.change(|identity| {
            identity.cell = cell.to_owned();
            identity.secret = Some(secret);
            identity.founding = founding;
        })
    }

    /// Remembers the list of members that the folder is first used with.
    pub fn remember_given(&self, given: &BTreeMap<u64, String>) -> io::Result<()> {
        self.change(|identity| identity.given = given.clone())
    }

    /// Remembers the version of the cell.
    pub fn remember_cell_version(&self, version: CellVersion) -> io::Result<()> {
        self.change(|identity| identity.cell_version = version)
    }

    /// Remembers what the node promises to leaders. Durable on return.
    pub(crate) fn remember_promise(&self, promise_ms: u64) -> io::Result<()> {
        self.change(|identity| identity.promise_ms = promise_ms)
    }

    fn change(&self, change: impl FnOnce(&mut Identity)) -> io::Result<()> {
        let mut known = self.known();
        let mut identity = known.clone();
        change(&mut identity);
        if let Some(place) = &self.place {
            write_identity(&place.path, &identity)?;
        }
        *known = identity;
        Ok(())
    }

    /// Where the log is, if it is on a disk.
    pub fn log(&self) -> Option<PathBuf> {
        self.place.as_ref().map(|place| place.path.join("log"))
    }

    /// Where the snapshot is, if it is on a disk.
    pub fn snapshot(&self) -> Option<PathBuf> {
        self.place.as_ref().map(|place| place.path.join("snapshot"))
    }
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
    // Only for people: who it is. The lock itself is what counts.
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(io_error)?;
    Ok(file)
}

fn read_identity(folder: &Path, bytes: &[u8]) -> Result<Identity, DataDirError> {
    let strange = |what: String| DataDirError::Strange { path: folder.join(IDENTITY), what };
    let identity: Identity = serde_json::from_slice(bytes).map_err(|error| {
        strange(format!("it cannot be read ({error}), so nobody knows whose folder this is. {REPAIR}"))
    })?;
    if identity.format != FORMAT {
        return Err(strange(format!(
            "the folder has format {}, this version knows format {FORMAT}: use the version that wrote it",
            identity.format
        )));
    }
    Ok(identity)
}

/// A new folder. One that has a log but no identity is not new, and not ours to guess about.
fn found(folder: &Path, node_id: u64) -> Result<Identity, DataDirError> {
    let io_error = |error| DataDirError::Io { path: folder.to_owned(), error };
    if folder.join("log").exists() || folder.join("snapshot").exists() {
        return Err(DataDirError::Strange {
            path: folder.to_owned(),
            what: format!(
                "it has a log or a snapshot but no {IDENTITY}: if it is no data folder of lockkeeper, choose another \
                 one. {REPAIR}"
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
        given: BTreeMap::new(),
        promise_ms: 0,
    })
}

fn write_identity(folder: &Path, identity: &Identity) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(identity).map_err(io::Error::other)?;
    let new = folder.join("identity.json.new");
    let mut file = private_files::options().write(true).create(true).truncate(true).open(&new)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&new, folder.join(IDENTITY))?;
    File::open(folder)?.sync_all()
}
