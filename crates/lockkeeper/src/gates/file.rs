//! The gate of a file that is replaced as a whole.
//!
//! The highest token is stored beside the file, in `NAME.lockkeeper-fence`. A write locks that record, checks the token, makes
//! a higher one durable, and replaces the file by renaming a new one over it. Readers see either the old or the new content
//! and need no gate.
//!
//! **What it does NOT protect from.** Programs that write the file without the gate. File systems on which `flock` does not
//! work across machines (some network file systems): [`FileGate::probe`] can only check the machine that it runs on.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lockkeeper_core::Token;
use smol_str::format_smolstr;

use super::record::{Record, io_error, sync_folder};
use super::{not_enforced, probe_name};
use crate::error::Error;

/// Gate of one file.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("settlement.json");
/// use lockkeeper::{Token, gates::file::FileGate};
///
/// let gate = FileGate::new(&path);
/// gate.write_blocking("[4472]", Token(42))?;
/// assert_eq!(gate.write_blocking("[]", Token(41)).unwrap_err().code(), "stale_token");
/// assert_eq!(std::fs::read(&path)?, b"[4472]");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct FileGate {
    path: PathBuf,
}

impl FileGate {
    /// Creates the gate of the file at this path; its folder must exist.
    pub fn new(path: impl Into<PathBuf>) -> FileGate {
        FileGate { path: path.into() }
    }

    /// Replaces the content. It is durable when the call returns.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if the gate has seen a higher token. [`Error::Unavailable`] if nothing was written.
    /// [`Error::Unknown`] if it was written, but may not survive a power loss.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not write.
    pub async fn write(&self, content: impl Into<Vec<u8>>, token: Token) -> Result<(), Error> {
        let (gate, content) = (self.clone(), content.into());
        run_blocking(move || gate.write_blocking(content, token)).await
    }

    /// Replaces the content, on the calling thread; see [`write`](FileGate::write).
    ///
    /// # Errors
    ///
    /// As [`write`](FileGate::write).
    pub fn write_blocking(&self, content: impl AsRef<[u8]>, token: Token) -> Result<(), Error> {
        let mut record = Record::open(&self.record_path()?)?;
        record.admit(token)?;
        self.replace(content.as_ref())
    }

    /// Reads the content and refuses older tokens from then on; `None` if the file does not exist.
    ///
    /// # Errors
    ///
    /// As [`write`](FileGate::write).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have raised the token.
    pub async fn read(&self, token: Token) -> Result<Option<Vec<u8>>, Error> {
        let gate = self.clone();
        run_blocking(move || gate.read_blocking(token)).await
    }

    /// Reads the content, on the calling thread; see [`read`](FileGate::read).
    ///
    /// # Errors
    ///
    /// As [`write`](FileGate::write).
    pub fn read_blocking(&self, token: Token) -> Result<Option<Vec<u8>>, Error> {
        let mut record = Record::open(&self.record_path()?)?;
        record.admit(token)?;
        self.content()
    }

    /// Updates the content atomically: no other gated write happens between the read and the write.
    ///
    /// `change` gets the content, or `None` if the file does not exist.
    ///
    /// # Errors
    ///
    /// As [`write`](FileGate::write).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not write.
    pub async fn update(
        &self,
        token: Token,
        change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8> + Send + 'static,
    ) -> Result<(), Error> {
        let gate = self.clone();
        run_blocking(move || gate.update_blocking(token, change)).await
    }

    /// Updates the content, on the calling thread; see [`update`](FileGate::update).
    ///
    /// # Errors
    ///
    /// As [`write`](FileGate::write).
    pub fn update_blocking(
        &self,
        token: Token,
        change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>,
    ) -> Result<(), Error> {
        let mut record = Record::open(&self.record_path()?)?;
        record.admit(token)?;
        self.replace(&change(self.content()?))
    }

    /// Returns the highest token that the gate has seen.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn highest(&self) -> Result<Token, Error> {
        let path = self.record_path()?;
        run_blocking(move || Ok(Record::open(&path)?.highest())).await
    }

    /// Proves, in the folder of this file, that a newer token passes and a stale one does not, and that two processes exclude
    /// each other. The file itself is not touched; the probe removes its own files.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the proof fails.
    ///
    /// # Cancel safety
    ///
    /// A dropped call still removes its files.
    pub async fn probe(&self) -> Result<(), Error> {
        let gate = self.clone();
        run_blocking(move || gate.probe_blocking()).await
    }

    fn probe_blocking(&self) -> Result<(), Error> {
        let trial = FileGate::new(self.path.with_file_name(probe_name().replace('/', "-")));
        let outcome = trial.try_stale_writes();
        for path in [trial.path.clone(), trial.record_path()?] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(io_error("remove", &path, &error));
            }
        }
        outcome
    }

    fn try_stale_writes(&self) -> Result<(), Error> {
        self.write_blocking("older", Token(1))?;
        self.write_blocking("newer", Token(2))?;
        let stale = self.write_blocking("stale", Token(1));
        let content = self.content()?;
        if !matches!(stale, Err(Error::StaleToken { .. })) || content.as_deref() != Some(b"newer") {
            return Err(not_enforced("this folder"));
        }
        // While the record is locked, a second open must not get the lock.
        let path = self.record_path()?;
        let _locked = Record::open(&path)?;
        let second = File::open(&path).map_err(|error| io_error("open", &path, &error))?;
        match second.try_lock() {
            Err(fs::TryLockError::WouldBlock) => Ok(()),
            Err(fs::TryLockError::Error(error)) => Err(io_error("lock", &path, &error)),
            Ok(()) => Err(Error::Fatal(format_smolstr!(
                "file locks have no effect on this file system, so two processes can write at once: {}",
                path.display()
            ))),
        }
    }

    fn content(&self) -> Result<Option<Vec<u8>>, Error> {
        match fs::read(&self.path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", &self.path, &error)),
        }
    }

    /// Replaces the content. The caller holds the lock of the record, so a fixed temporary name is safe; a leftover of a
    /// crash is overwritten.
    fn replace(&self, content: &[u8]) -> Result<(), Error> {
        let new = self.beside("lockkeeper-new")?;
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(content)?;
            // Keep the permissions of the replaced file.
            if let Ok(there) = fs::metadata(&self.path) {
                file.set_permissions(there.permissions())?;
            }
            file.sync_all()?;
            fs::rename(&new, &self.path)
        });
        written.map_err(|error| io_error("write", &self.path, &error))?;
        sync_folder(&self.path).map_err(|error| {
            Error::Unknown(format_smolstr!(
                "{} was written, but may not survive a power loss ({error}): write it again",
                self.path.display()
            ))
        })
    }

    fn record_path(&self) -> Result<PathBuf, Error> {
        self.beside("lockkeeper-fence")
    }

    fn beside(&self, ending: &str) -> Result<PathBuf, Error> {
        let name = self.path.file_name().ok_or_else(|| {
            Error::invalid(format!("{} is not the path of a file: append a file name", self.path.display()))
        })?;
        let mut name = name.to_owned();
        name.push(".");
        name.push(ending);
        Ok(self.path.with_file_name(name))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Runs blocking file operations on a separate thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Error::Fatal(format_smolstr!("a file operation ended without a result: {error}"))),
    }
}
