//! A snapshot that comes from another member, part by part. What has arrived stays when the transfer is cut
//! off, and the next try goes on from there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Place, ReadError, SnapshotImage};
use crate::private_files;

const PREFIX: &str = "incoming-";

/// The one snapshot that is being received.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// None: in memory.
    folder: Option<PathBuf>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    id: u64,
    bytes: u64,
    there: u64,
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

    /// Makes ready for a snapshot, and says how much of it is there. Parts of any other one are removed.
    pub(crate) fn begin(&mut self, id: u64, bytes: u64) -> io::Result<u64> {
        if let Some(current) = &self.current
            && (current.id, current.bytes) == (id, bytes)
        {
            return Ok(current.there);
        }
        self.current = None;
        let name = format!("{PREFIX}{id:016x}-{bytes}");
        let (target, there) = match &self.folder {
            None => (Target::Memory(Vec::new()), 0),
            Some(folder) => {
                remove_others(folder, &name)?;
                let path = folder.join(&name);
                let file = private_files::options().create(true).append(true).open(&path)?;
                let there = file.metadata()?.len();
                // What a crash left may be longer than it was written, but never longer than the whole.
                let there = if there > bytes {
                    file.set_len(0)?;
                    0
                } else {
                    there
                };
                (Target::File { path, file }, there)
            }
        };
        self.current = Some(Current { id, bytes, there, target });
        Ok(there)
    }

    /// Takes in the next part.
    pub(crate) fn push(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let current = self.current.as_mut().ok_or_else(|| io::Error::other("no snapshot was announced"))?;
        if offset != current.there || current.there + data.len() as u64 > current.bytes {
            return Err(io::Error::other("a part of the snapshot is out of order"));
        }
        match &mut current.target {
            Target::File { file, .. } => file.write_all(data)?,
            Target::Memory(bytes) => bytes.extend_from_slice(data),
        }
        current.there += data.len() as u64;
        Ok(())
    }

    /// All parts are there: checks the whole, and makes it durable. A damaged one is thrown away, so that the
    /// next try starts from nothing.
    pub(crate) async fn finish(&mut self) -> io::Result<SnapshotImage> {
        let current = self.current.take().ok_or_else(|| io::Error::other("no snapshot was announced"))?;
        if current.there != current.bytes {
            self.current = Some(current);
            return Err(io::Error::other("the snapshot ended too early"));
        }
        crate::blocking::run(move || {
            let place = match current.target {
                Target::File { path, file } => {
                    file.sync_all()?;
                    Place::File(path)
                }
                Target::Memory(bytes) => Place::Memory(Arc::new(bytes)),
            };
            let mut image = SnapshotImage { place, len: current.bytes, content: None };
            match super::read(&image) {
                Ok(content) => {
                    image.content = Some(Arc::new(content));
                    Ok(image)
                }
                Err(ReadError::Io(error)) => Err(error),
                Err(ReadError::Newer(what) | ReadError::Damaged(what)) => {
                    if let Place::File(path) = &image.place {
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
