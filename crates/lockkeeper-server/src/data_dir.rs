//! The folder of a node: whose it is, and that only one process works in it.
//!
//! ```text
//! identity.json   the cell and the node that the folder belongs to
//! lock            locked while a process works here; holds its process id
//! log/            the log
//! snapshot/       the newest snapshot
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const IDENTITY: &str = "identity.json";
const LOCK: &str = "lock";
const FORMAT: u32 = 1;

/// Whose folder it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The format of the folder.
    pub format: u32,
    /// The cell: a name drawn at random when it was formed.
    pub cell: String,
    /// The node.
    pub node_id: u64,
}

/// A folder that this process has for itself.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    /// Locked as long as it is open.
    _lock: File,
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
        fs::create_dir_all(path).map_err(io_error)?;
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
        Ok(DataDir { path: path.to_owned(), identity, _lock: lock })
    }

    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where the log is.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the snapshot is.
    pub fn snapshot(&self) -> PathBuf {
        self.path.join("snapshot")
    }
}

fn lock(folder: &Path) -> Result<File, DataDirError> {
    let path = folder.join(LOCK);
    let io_error = |error| DataDirError::Io { path: path.clone(), error };
    let mut file = OpenOptions::new()
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
        strange(format!(
            "it cannot be read ({error}): put back a copy of the folder from a backup, or choose another folder"
        ))
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
                "it has a log or a snapshot but no {IDENTITY}: put that file back from a backup, or choose \
                 another folder"
            ),
        });
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io_error(io::Error::other(error)))?;
    let identity = Identity { format: FORMAT, cell: format!("{:016x}", u64::from_le_bytes(random)), node_id };
    let text = serde_json::to_vec_pretty(&identity).map_err(|error| io_error(io::Error::other(error)))?;
    let new = folder.join("identity.json.new");
    let mut file = File::create(&new).map_err(io_error)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(io_error)?;
    fs::rename(&new, folder.join(IDENTITY)).map_err(io_error)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error)?;
    Ok(identity)
}
