//! Backups: a consistent copy of the whole state.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::Request;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::Api;
use crate::failure::Failure;

/// How long writing a snapshot may take. A snapshot of a million locks takes seconds.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(120);
/// How often to check whether the snapshot is written.
const POLL_EVERY: Duration = Duration::from_millis(50);
const CHUNK_BYTES: usize = 256 * 1024;
const CHUNKS_AHEAD: usize = 4;

/// A copy of the whole state.
pub struct Backup {
    /// Its size in bytes.
    pub bytes: u64,
    /// The index of the last entry that it covers.
    pub through: u64,
    /// Its content, in chunks.
    pub chunks: ReceiverStream<std::io::Result<Bytes>>,
}

impl Api {
    /// Returns the whole state, including everything that this node had applied when it was called.
    pub async fn backup(&self) -> Result<Backup, Failure> {
        self.authorize(&Request::Snapshot)?;
        if let Some(why) = self.consensus().status().stopped {
            return Err(Failure::Unavailable(why));
        }
        if !self.consensus().is_formed().await? {
            return Err(Failure::Unavailable(
                "this node is not part of a cell yet and has nothing to save: use another node, or wait until \
                 lockkeeper status shows a leader"
                    .to_owned(),
            ));
        }
        self.check_table_may_be_saved()?;
        let wanted = self.consensus().status().applied;
        let began = Instant::now();
        let (through, image) = loop {
            if let Some((meta, image)) = self.snapshots().current()
                && let Some(last) = meta.last_log_id
                && last.index >= wanted
            {
                break (last.index, image);
            }
            if let Some(why) = self.snapshots().trouble() {
                return Err(Failure::Unavailable(format!(
                    "this node cannot write a snapshot ({why}): free some space on its disk, or save from another \
                     node; it retries by itself"
                )));
            }
            if began.elapsed() > SNAPSHOT_TIMEOUT {
                return Err(Failure::Unavailable(format!(
                    "no snapshot was written within {} s: check the log of this node, or save from another node",
                    SNAPSHOT_TIMEOUT.as_secs()
                )));
            }
            self.check_table_may_be_saved()?;
            // No effect while a snapshot is already being written.
            self.consensus().take_snapshot().await?;
            tokio::time::sleep(POLL_EVERY).await;
        };
        let unreadable = |error| Failure::Unavailable(format!("failed to read the snapshot: {error}"));
        // An open file can be read to its end even if a newer snapshot replaces it.
        let mut file = image.open_at(0).map_err(unreadable)?;
        let (chunks, outgoing) = mpsc::channel(CHUNKS_AHEAD);
        let api = self.clone();
        tokio::task::spawn_blocking(move || {
            loop {
                let mut data = vec![0; CHUNK_BYTES];
                // A backup may take long, and the caller's rights may be revoked meanwhile.
                let allowed = api.authorize(&Request::Snapshot).map_err(std::io::Error::other);
                let chunk = match allowed.and_then(|()| file.read(&mut data)) {
                    Ok(0) => return,
                    Ok(count) => {
                        data.truncate(count);
                        Ok(Bytes::from(data))
                    }
                    Err(error) => Err(error),
                };
                let failed = chunk.is_err();
                if chunks.blocking_send(chunk).is_err() || failed {
                    return;
                }
            }
        });
        Ok(Backup { bytes: image.len(), through, chunks: ReceiverStream::new(outgoing) })
    }

    /// Fails if this node's table differs from the majority's, or if it is unknown which table the majority has (S13): a cell
    /// that is restored from a wrong table would continue with it.
    fn check_table_may_be_saved(&self) -> Result<(), Failure> {
        self.consensus().may_save_table().map_err(|found| {
            Failure::Unavailable(format!(
                "the lock table of this node may be wrong, so it gives no backup: {found}. Save from another node, which \
                 lockkeeper status shows as healthy"
            ))
        })
    }
}
