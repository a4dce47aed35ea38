//! A new cell from a backup. It must never give a token or a version of a value that was given before, also not one
//! that the old cell gave after the backup was taken, or that another cell restored from this backup gave: it goes on
//! above a floor (S1).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use lockkeeper_core::{Refusal, TableError, Token};

use crate::cell_secret::CellSecret;
use crate::data_dir::{DataDir, DataDirError};
use crate::raft::snapshot::{SnapshotReadError, SnapshotStore};
use crate::raft::types::Member;
use crate::token_floor::{BackupFacts, FloorError, FloorSource, token_floor};
use crate::versions::Versions;

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The name of the new cell.
    pub cell: String,
    /// The node it starts with.
    pub node_id: u64,
    /// The last token in the backup.
    pub backup_token: u64,
    /// The floor: all tokens and versions that the new cell gives are above.
    pub floor: u64,
    /// The locks in it.
    pub locks: u64,
    /// The sessions in it.
    pub sessions: u64,
    /// The values in it.
    pub values: u64,
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup cannot be used.
    #[error(transparent)]
    Backup(#[from] SnapshotReadError),
    /// The folder cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// There is no floor that is above everything given so far.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// The table does not take the floor.
    #[error(transparent)]
    Tokens(#[from] Refusal),
    /// The backup is that of a cell whose version is too new.
    #[error(transparent)]
    CellVersion(#[from] TableError),
    /// There is something in the folder already.
    #[error("the folder {} is not empty: choose one that is new, so that nothing is lost", .0.display())]
    NotEmpty(PathBuf),
    /// It could not be written.
    #[error("the folder {} cannot be written: {error}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Makes a new cell of one node out of a backup. Further nodes are added to it when it runs.
pub fn restore(
    backup: &Path,
    data_dir: &Path,
    node_id: u64,
    floor: FloorSource,
) -> Result<Restored, RestoreError> {
    let failed = |error| RestoreError::Io { path: data_dir.to_owned(), error };
    // The whole of the backup is read and checked before anything is written.
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
    let home = DataDir::open(data_dir, Some(node_id))?;
    let own = home.identity();
    // Its addresses become known when it is started.
    let member = Member { folder: own.folder, ..Member::default() };
    let (snapshots, _) = SnapshotStore::open(home.snapshot().as_deref(), 1)?;
    snapshots.write_alone(&meta, &table, node_id, member).map_err(failed)?;
    let cell = new_cell().map_err(failed)?;
    // Last: a folder without a cell's name is not taken for one.
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

/// The name of a new cell, drawn at random.
pub(crate) fn new_cell() -> io::Result<String> {
    let mut random = [0; 8];
    lockkeeper_net::random::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_le_bytes(random)))
}
