//! The gate of a file that is replaced as a whole.
//!
//! The highest token is kept beside the file, in `NAME.lockkeeper-fence`. A write locks that, checks the token, makes a higher
//! one durable, and replaces the file by renaming a new one over it: readers see the old content or the new, never half
//! of it. They need no gate.
//!
//! **What it does NOT protect from.** Programs that write the file without the gate. File systems on which `flock` does not
//! reach all machines (some network file systems): [`FileGate::probe`] can only tell for the machine that it runs on.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lockkeeper_core::Token;
use smol_str::format_smolstr;

use super::record::{Record, cannot, sync_folder};
use super::{not_enforced, probe_name};
use crate::error::Error;

/// The gate of one file.
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
    /// The gate of the file at this path; its folder has to be there.
    pub fn new(path: impl Into<PathBuf>) -> FileGate {
        FileGate { path: path.into() }
    }

    /// Replaces the content. When it returns, the content is on the disk.
    ///
    /// # Errors
    ///
    /// [`Error::StaleToken`] if a higher token was here before. [`Error::Unavailable`]: it was not written.
    /// [`Error::Unknown`]: it was written, but may not survive a power cut.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not write.
    pub async fn write(&self, content: impl Into<Vec<u8>>, token: Token) -> Result<(), Error> {
        let (gate, content) = (self.clone(), content.into());
        aside(move || gate.write_blocking(content, token)).await
    }

    /// The same for threads that may block.
    ///
    /// # Errors
    ///
    /// As [`write`](FileGate::write).
    pub fn write_blocking(&self, content: impl AsRef<[u8]>, token: Token) -> Result<(), Error> {
        let mut record = Record::open(&self.record_path()?)?;
        record.admit(token)?;
        self.replace(content.as_ref())
    }

    /// Reads the content under the token: from now on, older tokens are refused. `None` if there is no such file.
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
        aside(move || gate.read_blocking(token)).await
    }

    /// The same for threads that may block.
    ///
    /// # Errors
    ///
    /// As [`write`](FileGate::write).
    pub fn read_blocking(&self, token: Token) -> Result<Option<Vec<u8>>, Error> {
        let mut record = Record::open(&self.record_path()?)?;
        record.admit(token)?;
        self.content()
    }

    /// Changes the content in one step: nobody else writes between the read and the write. The function gets the content,
    /// or `None` if there is no such file.
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
        aside(move || gate.update_blocking(token, change)).await
    }

    /// The same for threads that may block.
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

    /// The highest token that was here.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn highest(&self) -> Result<Token, Error> {
        let path = self.record_path()?;
        aside(move || Ok(Record::open(&path)?.highest())).await
    }

    /// Proves in the folder of this file that a newer token passes and a stale one does not, and that two processes exclude
    /// each other there. The file itself is not touched; what the probe writes it removes.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if it does not hold.
    ///
    /// # Cancel safety
    ///
    /// A dropped call removes what it wrote all the same.
    pub async fn probe(&self) -> Result<(), Error> {
        let gate = self.clone();
        aside(move || gate.probe_blocking()).await
    }

    fn probe_blocking(&self) -> Result<(), Error> {
        let trial = FileGate::new(self.path.with_file_name(probe_name().replace('/', "-")));
        let outcome = trial.try_stale_writes();
        for path in [trial.path.clone(), trial.record_path()?] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(cannot("removed", &path, &error));
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
        // A second opening of the record must be kept out while the first one is inside.
        let path = self.record_path()?;
        let _inside = Record::open(&path)?;
        let second = File::open(&path).map_err(|error| cannot("opened", &path, &error))?;
        match second.try_lock() {
            Err(fs::TryLockError::WouldBlock) => Ok(()),
            Err(fs::TryLockError::Error(error)) => Err(cannot("locked", &path, &error)),
            Ok(()) => Err(Error::Fatal(format_smolstr!(
                "two processes can write here at once, because locks of files have no effect on this file system: {}",
                path.display()
            ))),
        }
    }

    fn content(&self) -> Result<Option<Vec<u8>>, Error> {
        match fs::read(&self.path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot("read", &self.path, &error)),
        }
    }

    /// The record is locked meanwhile, so one name for the new content is enough; what a crash left of it is overwritten.
    fn replace(&self, content: &[u8]) -> Result<(), Error> {
        let new = self.beside("lockkeeper-new")?;
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(content)?;
            // A replaced file has the rights of the one before.
            if let Ok(there) = fs::metadata(&self.path) {
                file.set_permissions(there.permissions())?;
            }
            file.sync_all()?;
            fs::rename(&new, &self.path)
        });
        written.map_err(|error| cannot("written", &self.path, &error))?;
        sync_folder(&self.path).map_err(|error| {
            Error::Unknown(format_smolstr!(
                "{} was written, but may not survive a power cut ({error}): write it again",
                self.path.display()
            ))
        })
    }

    fn record_path(&self) -> Result<PathBuf, Error> {
        self.beside("lockkeeper-fence")
    }

    fn beside(&self, ending: &str) -> Result<PathBuf, Error> {
        let name = self.path.file_name().ok_or_else(|| {
            Error::invalid(format!("{} is no path of a file: give it a name at the end", self.path.display()))
        })?;
        let mut name = name.to_owned();
        name.push(".");
        name.push(ending);
        Ok(self.path.with_file_name(name))
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Disks block, so they are asked on a thread of their own.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => {
            Err(Error::Fatal(format_smolstr!("the work on a file ended without an answer: {error}")))
        }
    }
}
