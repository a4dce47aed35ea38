//! `lockkeeper snapshot`: backup and restore of a cell.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use lockkeeper::admin::Snapshot;
use lockkeeper_server::backup::token_floor::FloorSource;
use lockkeeper_server::backup::{self, Restored};
use serde_json::json;

use crate::client::{self, Client, Output};
use crate::failure::Failure;

/// Save the state of a cell, and restore it as a new cell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper snapshot save monday.snapshot --engine lockkeeper://10.0.0.1:7420
  lockkeeper snapshot restore monday.snapshot --data-dir /var/lib/lockkeeper
  lockkeeper serve --data-dir /var/lib/lockkeeper

A restore makes a new cell of one node; add the others with lockkeeper member add. Its tokens
and value versions continue above a floor, so that none is granted twice, even if the old cell
continued after the backup or the backup was restored before. The floor is the time of the
restore: 1,000,000 for each second since 2020, UTC. If the clock of this machine cannot be
trusted, give the floor with --tokens-above.

Do not restore twice at the same moment, or on machines whose clocks differ by more than the
time between the restores: such cells may grant the same tokens. Never let two cells serve the
same clients.")]
pub(crate) struct SnapshotVerb {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Save the state of the cell, as one node knows it, to a file
    Save {
        /// File to create; it must not exist
        file: PathBuf,
        #[command(flatten)]
        client: Client,
    },
    /// Create the data folder of a new cell from a saved state; no node may run in it
    Restore {
        /// File with the saved state
        file: PathBuf,
        /// Data folder to create
        #[arg(long, default_value = "./lockkeeper-data", env = "LOCKKEEPER_DATA_DIR")]
        data_dir: PathBuf,
        /// Id of the first node of the new cell
        #[arg(long, default_value_t = 1)]
        node_id: u64,
        /// Grant only tokens and versions above this number, instead of a floor from the clock of this machine
        #[arg(long, value_name = "N")]
        tokens_above: Option<u64>,
        /// Text for people or JSON for programs
        #[arg(short, long, value_enum, default_value = "table", value_name = "FORMAT")]
        output: Output,
    },
}

impl SnapshotVerb {
    pub(crate) fn output(&self) -> Output {
        match &self.action {
            Action::Save { client, .. } => client.output,
            Action::Restore { output, .. } => *output,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        match &self.action {
            Action::Save { file, client } => {
                let (bytes, index) = client::block_on(save(client, file))?;
                match client.output {
                    Output::Json => {
                        client::print_json(&json!({"file": file, "bytes": bytes, "index": index}))?
                    }
                    Output::Table => client::print(&format!(
                        "saved {bytes} bytes, the state after entry {index}, to {}\n",
                        file.display()
                    ))?,
                }
            }
            Action::Restore { file, data_dir, node_id, tokens_above, output } => {
                // The only decision of Lockkeeper that depends on a wall clock: see lockkeeper_server::backup::token_floor.
                let floor =
                    tokens_above.map_or_else(|| FloorSource::Clock(SystemTime::now()), FloorSource::Given);
                let restored = backup::restore(file, data_dir, *node_id, floor)
                    .map_err(|error| Failure::other(error.to_string()))?;
                match output {
                    Output::Json => client::print_json(&to_json(&restored, data_dir))?,
                    Output::Table => client::print(&to_text(&restored, data_dir, floor))?,
                }
            }
        }
        Ok(0)
    }
}

fn to_json(restored: &Restored, data_dir: &Path) -> serde_json::Value {
    json!({
        "cell": restored.cell,
        "node_id": restored.node_id,
        "data_dir": data_dir,
        "backup_last_token": restored.backup_token,
        "tokens_above": restored.floor,
        "locks": restored.locks,
        "sessions": restored.sessions,
        "values": restored.values,
    })
}

fn to_text(restored: &Restored, data_dir: &Path, floor: FloorSource) -> String {
    let Restored { cell, node_id: _, backup_token, floor: above, locks, sessions, values } = restored;
    let data_dir = data_dir.display();
    let source = match floor {
        FloorSource::Clock(_) => {
            "the floor is from the clock of this machine: 1,000,000 for each second since 2020, UTC\n\
             tokens may be granted twice if that clock is wrong, if the clock of an earlier restore was ahead of it, \
             or if this backup is restored elsewhere at the same moment\n"
        }
        FloorSource::Given(_) => {
            "the floor is from --tokens-above: tokens are granted twice if the old cell, or a cell restored \
             from its backups, has granted higher ones\n"
        }
    };
    format!(
        "restored {locks} locks, {sessions} sessions and {values} values into the new cell {cell} in {data_dir}\n\
         all tokens and versions of the new cell are above {above} (the backup's last token was {backup_token})\n\
         {source}\
         stop the old cell for good\n\
         start the new one: lockkeeper serve --data-dir {data_dir}\n"
    )
}

/// Saves to a temporary name first, so that the named file is always complete.
async fn save(client: &Client, file: &Path) -> Result<(u64, u64), Failure> {
    let failed =
        |error: std::io::Error| Failure::other(format!("failed to write {}: {error}", file.display()));
    if file.exists() {
        return Err(Failure::usage(format!("{} already exists: choose another name", file.display())));
    }
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let snapshot = client.admin()?.snapshot().await?;
    let mut out = create_private(&part)?;
    let progress = std::io::stderr().is_terminal() && client.output == Output::Table;
    let saved = receive(snapshot, &mut out, progress).await;
    if progress {
        eprintln!();
    }
    let saved = saved.and_then(|saved| {
        out.sync_all().and_then(|()| std::fs::rename(&part, file)).map_err(failed)?;
        Ok(saved)
    });
    if saved.is_err() {
        // It is incomplete.
        let _ = std::fs::remove_file(&part);
    }
    saved
}

/// Writes all chunks. Returns the number of bytes and the last entry of the state.
async fn receive(mut snapshot: Snapshot, out: &mut File, progress: bool) -> Result<(u64, u64), Failure> {
    let (mut bytes, mut index) = (0, 0);
    while let Some(chunk) = snapshot.next().await? {
        out.write_all(&chunk.data)
            .map_err(|error| Failure::other(format!("failed to write the snapshot: {error}")))?;
        bytes += chunk.data.len() as u64;
        index = chunk.index;
        if progress {
            eprint!("\r{bytes} of {} bytes", chunk.total_bytes);
        }
    }
    Ok((bytes, index))
}

/// Creates a file that only its owner may read: a snapshot contains names, owners, values and the hashes of access tokens.
/// What is already there, such as a planted symbolic link, is not touched.
fn create_private(path: &Path) -> Result<File, Failure> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format!(
            "{} already exists: remove it if no other save is writing it",
            path.display()
        )),
        _ => Failure::other(format!("failed to create {}: {error}", path.display())),
    })
}
