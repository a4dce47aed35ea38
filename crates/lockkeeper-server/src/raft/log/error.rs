//! What can go wrong with the log, in words that say what to do.

use std::io;
use std::sync::Arc;

/// What to do about a log, a snapshot or a folder that can't be trusted. Never a copy of the folder: an older one has
/// forgotten votes and grants, and would give tokens twice (S1, S10).
pub(crate) const REPAIR: &str = "Nothing was changed. If this node is alone in its cell, restore it from a snapshot or a \
    backup (lockkeeper snapshot restore). If the cell has other members, remove this node from the cell, \
    delete its data folder, and add it again as a new member: it then gets everything from the others. Do not \
    delete or edit single files of the folder: this node has promised the others to keep what is in them";

/// Why the log can't be opened, written or read. Cloned to everyone who asks after the first failure.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// The disk is full.
    #[error("no space left in {folder}, free some space and restart ({source})")]
    NoSpace {
        /// The folder of the log.
        folder: String,
        /// What the disk said.
        source: Arc<io::Error>,
    },
    /// The disk failed.
    #[error(
        "can't {action} {file}: {source}. The log takes no more writes, because what this disk says can no \
         longer be trusted: check the disk and its kernel messages, then restart the node"
    )]
    Disk {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        file: String,
        /// What the disk said.
        source: Arc<io::Error>,
    },
    /// Something that was acknowledged, or may have been, is damaged.
    #[error("the log is damaged: {file} at byte {offset}: {what}. {REPAIR}")]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The log was written by a version that knows a newer format.
    #[error(
        "{file} has format {found}, and this version of lockkeeper reads format {known}: run the version that \
         wrote it, or a newer one"
    )]
    Format {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// A record is as it was written, but by a version that knows more than this one.
    #[error(
        "{file} holds a record at byte {offset} that this version of lockkeeper does not know ({what}), although \
         its checksum fits: run the version that wrote it, or a newer one"
    )]
    Newer {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is unknown.
        what: String,
    },
    /// The caller left a hole between entries.
    #[error("entry {found} can't follow the last entry of the log, {last}: this is a bug, please report it")]
    Hole {
        /// The last index, or "none".
        last: String,
        /// The index that was given.
        found: u64,
    },
    /// An entry that is beyond all bounds.
    #[error("a log entry of {bytes} bytes is too large, the most is {bytes_max}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// A value could not be encoded.
    #[error("can't encode a log record: {0}: this is a bug, please report it")]
    Encoding(postcard::Error),
    /// A thread of the log has panicked.
    #[error("the log stopped because of a panic, see the messages before: this is a bug, please report it")]
    Panicked,
    /// The settings make no sense.
    #[error("the log can't be opened with these settings: {0}")]
    Settings(&'static str),
}

impl LogError {
    /// The same for a log that is open and goes on trying: nobody has to restart anything for that.
    pub(crate) fn while_it_is_tried_again(&self) -> String {
        match self {
            LogError::NoSpace { folder, source } => {
                format!("no space left in {folder} ({source}): free some, and it goes on by itself")
            }
            other => other.to_string(),
        }
    }

    /// A failure of the disk, with a full disk told apart.
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
