//! Restores a backup as a new cell. That cell must never repeat a token or a version of a value, not even one that the
//! old cell gave after the backup was taken, or that another cell restored from the same backup gave. So its numbers
//! start above a floor (S1).

pub mod token_floor;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use lockkeeper_core::{Refusal, TableError, Token};

use crate::backup::token_floor::{BackupFacts, FloorError, FloorSource, token_floor};
use crate::data_dir::{DataDir, DataDirError, InsecureFiles};
use crate::formation::cell_secret::CellSecret;
use crate::formation::versions::Versions;
use crate::raft::snapshot::{SnapshotReadError, SnapshotStore};
use crate::raft::types::Member;

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Name of the new cell.
    pub cell: String,
    /// Its first node.
    pub node_id: u64,
    /// Last token in the backup.
    pub backup_token: u64,
    /// All tokens and versions that the new cell gives are above this floor.
    pub floor: u64,
    /// Number of locks.
    pub locks: u64,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of values.
    pub values: u64,
}

/// Reason why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup cannot be used.
    #[error(transparent)]
    Backup(#[from] SnapshotReadError),
    /// The folder cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// No floor is safely above all numbers given so far.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// The table refuses the floor.
    #[error(transparent)]
    Tokens(#[from] Refusal),
    /// The cell version of the backup is too new.
    #[error(transparent)]
    CellVersion(#[from] TableError),
    /// The folder is not empty.
    #[error("the folder {} is not empty: choose a new one, so that nothing is lost", .0.display())]
    NotEmpty(PathBuf),
    /// The folder could not be written.
    #[error("the folder {} cannot be written: {error}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

/// Restores a backup as a new cell of one node. More nodes can be added when it runs.
pub fn restore(
    backup: &Path,
    data_dir: &Path,
    node_id: u64,
    floor: FloorSource,
) -> Result<Restored, RestoreError> {
    let failed = |error| RestoreError::Io { path: data_dir.to_owned(), error };
    // The whole backup is read and verified before anything is written.
    let (meta, mut table) = SnapshotStore::read_backup(backup)?;
    table.support(Versions::RELEASED.cell)?;
    match std::fs::read_dir(data_dir).map(Iterator::count) {
        Ok(0) => {}
        Ok(_) => return Err(RestoreError::NotEmpty(data_dir.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let backup_token = table.last_token().0;
    let written = std::fs::metadata(backup).and_then(|file| file.modified()).ok();
    let floor = token_floor(floor, BackupFacts { highest_number: table.highest_number(), written })?;
    table.raise_to_floor(Token(floor))?;
    table.note_restored();
    // The node checks its files when it starts.
    let home = DataDir::open(data_dir, Some(node_id), InsecureFiles::Allowed)?;
    let own = home.identity();
    // Its addresses become known when it is started.
    let member = Member { folder: own.folder, ..Member::default() };
    let (snapshots, _) = SnapshotStore::open(home.snapshot().as_deref(), 1)?;
    snapshots.write_single_member(&meta, &table, node_id, member).map_err(failed)?;
    let cell = new_cell().map_err(failed)?;
    // Last, because the name of the cell marks the folder as complete.
    let secret = CellSecret::generate().map_err(failed)?;
    home.join(&cell, secret, Default::default()).map_err(failed)?;
    File::open(data_dir).and_then(|folder| folder.sync_all()).map_err(failed)?;
    let counts = table.counts();
    Ok(Restored {
        cell,
        node_id,
        backup_token,
        floor,
        locks: counts.locks,
        sessions: counts.sessions,
        values: counts.values,
    })
}

/// Generates a random name for a new cell.
pub(crate) fn new_cell() -> io::Result<String> {
    let mut random = [0; 8];
    lockkeeper_net::random::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_le_bytes(random)))
}
