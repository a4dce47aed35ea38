//! `lockkeeper snapshot`: backups of a whole cell.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use lockkeeper_proto::v1;
use lockkeeper_server::backup;
use serde_json::json;

use crate::admin;
use crate::client::{self, Client, Output};
use crate::failure::Failure;

/// Save the whole state of a cell, and make a new cell from it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper snapshot save monday.snapshot --engine lockkeeper://10.0.0.1:7420
  lockkeeper snapshot restore monday.snapshot --data-dir /var/lib/lockkeeper
  lockkeeper serve --data-dir /var/lib/lockkeeper

A restored cell is a new one, of one node; add the others with lockkeeper member add. Its
tokens go on 1,000,000,000,000 above those of the backup, so that no token is given
twice, also if the old cell went on after the backup was taken. Never let both serve.

Restore a backup only once, and always the newest: the same backup restored again gives the
same tokens again, and an older one gives tokens that a cell restored from a newer one
has given. If a restored cell is lost too, restore from a backup of that cell.")]
pub(crate) struct SnapshotVerb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Save the state of the cell, as one node knows it, into a file
    Save {
        /// Where to; it must not be there yet
        file: PathBuf,
        #[command(flatten)]
        client: Client,
    },
    /// Make the data folder of a new cell from a saved state; no node may run in it
    Restore {
        /// A saved state
        file: PathBuf,
        /// The folder to make
        #[arg(long, default_value = "./lockkeeper-data", env = "LOCKKEEPER_DATA_DIR")]
        data_dir: PathBuf,
        /// The id of the one node that the new cell starts with
        #[arg(long, default_value_t = 1)]
        node_id: u64,
        /// Text for people or JSON for programs
        #[arg(long, value_enum, default_value = "table", value_name = "FORMAT")]
        output: Output,
    },
}

impl SnapshotVerb {
    pub(crate) fn output(&self) -> Output {
        match &self.what {
            What::Save { client, .. } => client.output,
            What::Restore { output, .. } => *output,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        match &self.what {
            What::Save { file, client } => {
                let (bytes, index) = client::block_on(save(client, file))?;
                match client.output {
                    Output::Json => {
                        client::print_json(&json!({"file": file, "bytes": bytes, "index": index}))?
                    }
                    Output::Table => client::print(&format!(
                        "saved {bytes} bytes, the state after entry {index}, in {}\n",
                        file.display()
                    ))?,
                }
            }
            What::Restore { file, data_dir, node_id, output } => {
                let restored = backup::restore(file, data_dir, *node_id)
                    .map_err(|error| Failure::other(error.to_string()))?;
                match output {
                    Output::Json => client::print_json(&json!({
                        "cell": restored.cell,
                        "node_id": restored.node_id,
                        "data_dir": data_dir,
                        "backup_last_token": restored.backup_token,
                        "last_token": restored.last_token,
                        "locks": restored.locks,
                        "sessions": restored.sessions,
                        "values": restored.values,
                    }))?,
                    Output::Table => client::print(&format!(
                        "restored {} locks, {} sessions and {} values into the new cell {} in {}\n\
                         tokens go on above {} (the backup's last one was {}, and {} was added)\n\
                         restore this backup only once, and no older one after it: its tokens would be given twice\n\
                         start it: lockkeeper serve --data-dir {}\n",
                        restored.locks,
                        restored.sessions,
                        restored.values,
                        restored.cell,
                        data_dir.display(),
                        restored.last_token,
                        restored.backup_token,
                        backup::TOKENS_RAISED_BY,
                        data_dir.display()
                    ))?,
                }
            }
        }
        Ok(0)
    }
}

/// Saves under another name first, so that what has the name is whole.
async fn save(client: &Client, file: &Path) -> Result<(u64, u64), Failure> {
    let failed =
        |error: std::io::Error| Failure::other(format!("{} cannot be written: {error}", file.display()));
    if file.exists() {
        return Err(Failure::usage(format!("{} is there already: choose another name", file.display())));
    }
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let mut chunks =
        admin::call(client, |mut node| async move { node.save_snapshot(v1::SaveSnapshotRequest {}).await })
            .await?;
    let mut out = File::create(&part).map_err(failed)?;
    let (mut bytes, mut total, mut index) = (0, 0, 0);
    let progress = std::io::stderr().is_terminal() && client.output == Output::Table;
    loop {
        let chunk = match chunks.message().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(status) => {
                let _ = std::fs::remove_file(&part);
                return Err(Failure::other(format!("the node stopped sending: {}", status.message())));
            }
        };
        out.write_all(&chunk.data).map_err(failed)?;
        bytes += chunk.data.len() as u64;
        (total, index) = (chunk.total_bytes, chunk.index);
        if progress {
            eprint!("\r{bytes} of {total} bytes");
        }
    }
    if progress {
        eprintln!();
    }
    if bytes != total || total == 0 {
        let _ = std::fs::remove_file(&part);
        return Err(Failure::other(format!("only {bytes} of {total} bytes came: try again")));
    }
    out.sync_all().map_err(failed)?;
    std::fs::rename(&part, file).map_err(failed)?;
    Ok((bytes, index))
}
