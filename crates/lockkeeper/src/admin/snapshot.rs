//! Backups.

use lockkeeper_api::v1;
use tonic::Streaming;

use crate::error::Error;

/// Stream of a backup, from [`Admin::snapshot`](super::Admin::snapshot).
#[derive(Debug)]
pub struct Snapshot {
    chunks: Streaming<v1::SnapshotChunk>,
    received: u64,
    total: Option<u64>,
}

/// Chunk of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotChunk {
    /// The next bytes of the file.
    pub data: Vec<u8>,
    /// The size of the whole file.
    pub total_bytes: u64,
    /// The last log entry that the backup covers.
    pub index: u64,
}

impl Snapshot {
    pub(super) fn new(chunks: Streaming<v1::SnapshotChunk>) -> Snapshot {
        Snapshot { chunks, received: 0, total: None }
    }

    /// Receives the next chunk; `None` when the backup is complete.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the node stops before the end: the partial backup is useless.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the next call returns a chunk that this one did not.
    pub async fn next(&mut self) -> Result<Option<SnapshotChunk>, Error> {
        let chunk = self.chunks.message().await.map_err(|status| {
            Error::unavailable(format!("the node stopped sending the snapshot: {}", status.message()))
        })?;
        let Some(v1::SnapshotChunk { data, total_bytes, index }) = chunk else {
            return match (self.received, self.total) {
                (received, Some(total)) if received == total => Ok(None),
                (received, total) => Err(Error::unavailable(format!(
                    "only {received} of {} bytes of the snapshot were received: try again",
                    total.map_or("an unknown number".to_owned(), |total| total.to_string())
                ))),
            };
        };
        self.received += data.len() as u64;
        self.total = Some(total_bytes);
        Ok(Some(SnapshotChunk { data, total_bytes, index }))
    }
}
