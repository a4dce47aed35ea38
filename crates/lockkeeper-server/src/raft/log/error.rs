//! Errors of the log. Each message says what to do.

use std::io;
use std::sync::Arc;

/// Instructions for a log, a snapshot or a folder that can't be trusted. They never suggest a copy of the folder: an
/// older copy lacks votes and grants, and would give tokens twice (S1, S10).
pub(crate) const REPAIR: &str = "Nothing was changed. If this node is alone in its cell, restore it from a snapshot or a \
    backup (lockkeeper snapshot restore). If the cell has other members, remove this node from the cell, \
    delete its data folder, and add it again as a new member: it then copies the state from the others. Do not \
    delete or edit single files of the folder: the other members rely on what this node has stored";

/// Reason why the log can't be opened, written or read. After the first failure every caller gets a clone of it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// The disk is full.
    #[error("no space left in {folder}, free some space and restart ({source})")]
    NoSpace {
        /// The folder of the log.
        folder: String,
        /// The error of the disk.
        source: Arc<io::Error>,
    },
    /// The disk failed.
    #[error(
        "can't {action} {file}: {source}. The log accepts no more writes, because this disk can no longer be \
         trusted: check the disk and its kernel messages, then restart the node"
    )]
    Disk {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
        file: String,
        /// The error of the disk.
        source: Arc<io::Error>,
    },
    /// Data that was acknowledged, or may have been, is damaged.
    #[error("the log is damaged: {file} at byte {offset}: {what}. {REPAIR}")]
    Damaged {
        /// The file.
        file: String,
        /// The byte offset in it.
        offset: u64,
        /// The damage.
        what: String,
    },
    /// The log has a format that this version can't read.
    #[error(
        "{file} has format {found}, and this version of lockkeeper reads format {known}: run the version that \
         wrote it, or a newer one"
    )]
    Format {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
        /// The format of this version.
        known: u32,
    },
    /// A record is intact, but was written by a newer version.
    #[error(
        "{file} has a record at byte {offset} that this version of lockkeeper can't read ({what}), although \
         its checksum is valid: run the version that wrote it, or a newer one"
    )]
    Newer {
        /// The file.
        file: String,
        /// The byte offset in it.
        offset: u64,
        /// What is unknown.
        what: String,
    },
    /// The caller left a gap between entries.
    #[error("entry {found} can't follow the last entry of the log, {last}: this is a bug, please report it")]
    Hole {
        /// The last index, or "none".
        last: String,
        /// The index that was given.
        found: u64,
    },
    /// An entry is larger than a record can hold.
    #[error("a log entry of {bytes} bytes is too large: the limit is {bytes_max} bytes")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// A value could not be encoded.
    #[error("can't encode a log record: {0}: this is a bug, please report it")]
    Encoding(postcard::Error),
    /// A thread of the log has panicked.
    #[error("the log stopped because of a panic, see the earlier messages: this is a bug, please report it")]
    Panicked,
    /// The settings are invalid.
    #[error("the log can't be opened with these settings: {0}")]
    Settings(&'static str),
}

impl LogError {
    /// Describes the error of a log that is open and retries: no restart is needed.
    pub(crate) fn retry_message(&self) -> String {
        match self {
            LogError::NoSpace { folder, source } => {
                format!(
                    "no space left in {folder} ({source}): free some space, and writes resume by themselves"
                )
            }
            other => other.to_string(),
        }
    }

    /// Wraps an error of the disk. A full disk becomes [`LogError::NoSpace`].
    pub(crate) fn disk(action: &'static str, folder: &str, file: &str, source: io::Error) -> LogError {
        let full = matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let source = Arc::new(source);
        if full {
            LogError::NoSpace { folder: folder.to_owned(), source }
        } else {
            LogError::Disk { action, file: format!("{folder}/{file}"), source }
        }
    }
}

impl From<LogError> for io::Error {
    fn from(error: LogError) -> io::Error {
        let kind = match &error {
            LogError::NoSpace { .. } => io::ErrorKind::StorageFull,
            LogError::Disk { source, .. } => source.kind(),
            LogError::Damaged { .. } | LogError::Format { .. } | LogError::Newer { .. } => {
                io::ErrorKind::InvalidData
            }
            LogError::Hole { .. } | LogError::TooLarge { .. } | LogError::Settings(_) => {
                io::ErrorKind::InvalidInput
            }
            LogError::Encoding(_) | LogError::Panicked => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
