//! Reception of a snapshot from another member, part by part. The received parts survive an interrupted transfer, and
//! the next attempt resumes after them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::{ReadError, SnapshotImage, Storage};
use crate::data_dir::private_files;

const PREFIX: &str = "incoming-";

/// The snapshot that is being received.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// `None`: in memory.
    folder: Option<PathBuf>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    id: u64,
    bytes: u64,
    received: u64,
    target: Target,
}

#[derive(Debug)]
enum Target {
    File { path: PathBuf, file: File },
    Memory(Vec<u8>),
}

impl Incoming {
    pub(super) fn new(folder: Option<PathBuf>) -> Incoming {
        Incoming { folder, current: None }
    }

    /// Prepares for a snapshot and returns how many of its bytes are already there. Removes parts of other snapshots.
    pub(crate) fn begin(&mut self, id: u64, bytes: u64) -> io::Result<u64> {
        if let Some(current) = &self.current
            && (current.id, current.bytes) == (id, bytes)
        {
            return Ok(current.received);
        }
        self.current = None;
        let name = format!("{PREFIX}{id:016x}-{bytes}");
        let (target, received) = match &self.folder {
            None => (Target::Memory(Vec::new()), 0),
            Some(folder) => {
                remove_others(folder, &name)?;
                let path = folder.join(&name);
                let file = private_files::options().create(true).append(true).open(&path)?;
                let received = file.metadata()?.len();
                // A crash may leave more bytes than were written. A file longer than the snapshot is discarded.
                let received = if received > bytes {
                    file.set_len(0)?;
                    0
                } else {
                    received
                };
                (Target::File { path, file }, received)
            }
        };
        self.current = Some(Current { id, bytes, received, target });
        Ok(received)
    }

    /// Stores the next part.
    pub(crate) fn push(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let current = self.current.as_mut().ok_or_else(|| io::Error::other("no snapshot was announced"))?;
        if offset != current.received || current.received + data.len() as u64 > current.bytes {
            return Err(io::Error::other("a part of the snapshot is out of order"));
        }
        match &mut current.target {
            Target::File { file, .. } => file.write_all(data)?,
            Target::Memory(bytes) => bytes.extend_from_slice(data),
        }
        current.received += data.len() as u64;
        Ok(())
    }

    /// Checks the complete snapshot and makes it durable. Discards a damaged one, so that the next attempt starts from
    /// scratch.
    pub(crate) async fn finish(&mut self) -> io::Result<SnapshotImage> {
        let current = self.current.take().ok_or_else(|| io::Error::other("no snapshot was announced"))?;
        if current.received != current.bytes {
            self.current = Some(current);
            return Err(io::Error::other("the snapshot ended too early"));
        }
        crate::limits::blocking::run(move || {
            let storage = match current.target {
                Target::File { path, file } => {
                    file.sync_all()?;
                    Storage::File(path)
                }
                Target::Memory(bytes) => Storage::Memory(Arc::new(bytes)),
            };
            let mut image = SnapshotImage { storage, len: current.bytes, content: None };
            match super::read(&image) {
                Ok(content) => {
                    image.content = Some(Arc::new(content));
                    Ok(image)
                }
                Err(ReadError::Io(error)) => Err(error),
                Err(ReadError::Newer(what) | ReadError::Damaged(what)) => {
                    if let Storage::File(path) = &image.storage {
                        fs::remove_file(path)?;
                    }
                    Err(io::Error::new(io::ErrorKind::InvalidData, what))
                }
            }
        })
        .await?
    }
}

fn remove_others(folder: &std::path::Path, keep: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name != keep {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
