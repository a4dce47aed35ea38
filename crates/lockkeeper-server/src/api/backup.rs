//! Backups: the whole state at one moment.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::Request;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::Api;
use crate::failure::Failure;

/// How long a snapshot may take to be written; one of a million locks takes seconds.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(120);
/// Between two looks whether a snapshot is there.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const CHUNK_BYTES: usize = 256 * 1024;
const CHUNKS_AHEAD: usize = 4;

/// A copy of the whole state.
pub struct Backup {
    /// Its size.
    pub bytes: u64,
    /// The last entry that it covers.
    pub through: u64,
    /// Its content.
    pub chunks: ReceiverStream<std::io::Result<Bytes>>,
}

impl Api {
    /// The whole state at one moment, with all that this node had applied when it was asked.
    pub async fn backup(&self) -> Result<Backup, Failure> {
        self.authorize(&Request::Snapshot)?;
        if let Some(why) = self.consensus().status().stopped {
            return Err(Failure::Unavailable(why));
        }
        if !self.consensus().is_formed().await? {
            return Err(Failure::Unavailable(
                "this node waits for its cell and has nothing to save yet: ask another node, or wait until \
                 lockkeeper status names a leader"
                    .to_owned(),
            ));
        }
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
                     node; it goes on trying by itself"
                )));
            }
            if began.elapsed() > SNAPSHOT_WITHIN {
                return Err(Failure::Unavailable(format!(
                    "no snapshot was written within {} s: look at the log of this node, or save from another one",
                    SNAPSHOT_WITHIN.as_secs()
                )));
            }
            // Ignored while one is being written.
            self.consensus().take_snapshot().await?;
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let unreadable = |error| Failure::Unavailable(format!("the snapshot cannot be read: {error}"));
        // Once it is open it can be read to its end, also if a newer one takes its place.
        let mut file = image.open_at(0).map_err(unreadable)?;
        let (chunks, outgoing) = mpsc::channel(CHUNKS_AHEAD);
        let api = self.clone();
        tokio::task::spawn_blocking(move || {
            loop {
                let mut data = vec![0; CHUNK_BYTES];
                // It may take long, and the caller's rights may end meanwhile.
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
}
