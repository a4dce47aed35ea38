//! What people do to a cell: members, backups.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::v1;
use lockkeeper_core::{Command, Right};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::calls::Calls;
use crate::failure::Failure;
use crate::leadership;
use crate::raft::network::{hello, join};

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

impl Calls {
    /// Adds a node that runs with an empty folder: it learns everything, and then votes.
    pub async fn add_member(&self, node_id: u64, address: &str) -> Result<Vec<v1::Member>, Failure> {
        self.may_all(Right::Admin, "")?;
        self.shared().leader_term.now()?;
        let own = self.home().identity();
        let contact = self.consensus().contact(own.clone());
        let node = hello(&contact, address).await.map_err(|why| {
            Failure::Unavailable(format!(
                "no node answers at {address} ({why}): start it first, with an empty folder: lockkeeper serve \
                 --node-id {node_id} --listen {address} --cell {}",
                self.cell_with(node_id, address)
            ))
        })?;
        if node.node_id != node_id {
            return Err(Failure::Invalid(format!(
                "the node at {address} is node {}, not node {node_id}: name it by its id, or start the right one",
                node.node_id
            )));
        }
        if let Some(theirs) = node.cell.filter(|theirs| *theirs != own.cell) {
            return Err(Failure::Invalid(format!(
                "the node at {address} belongs to another cell ({theirs}): start it with an empty folder"
            )));
        }
        let version = self.shared().table().cell_version();
        if node.cell_version_max < version {
            return Err(Failure::Invalid(format!(
                "the node at {address} supports cell versions up to {}, and the cell has version {version}: start it with the \
                 binary that the members run",
                node.cell_version_max
            )));
        }
        self.note(format!("member {node_id}={address} is added")).await?;
        join(&contact, node_id, &node.member).await.map_err(|why| {
            Failure::Unavailable(format!("the node at {address} did not join the cell ({why}): try again"))
        })?;
        self.consensus().add_member(node_id, node.member).await?;
        Ok(self.status().members)
    }

    /// Removes a member for good. A leader that is to be removed hands over first; the new one is to be asked then.
    pub async fn remove_member(&self, node_id: u64) -> Result<Vec<v1::Member>, Failure> {
        self.may_all(Right::Admin, "")?;
        self.shared().leader_term.now()?;
        if node_id == self.home().identity().node_id && !self.consensus().is_alone() {
            leadership::hand_over(self.shared(), self.consensus()).await?;
            return Err(Failure::NotLeader { leader: self.consensus().status().leader_address });
        }
        self.note(format!("member {node_id} is removed")).await?;
        self.consensus().remove_member(node_id).await?;
        Ok(self.status().members)
    }

    /// Remembers who does what, if it is known who they are.
    async fn note(&self, text: String) -> Result<(), Failure> {
        match self.signature() {
            by if by.is_empty() => Ok(()),
            by => self.command(Command::AuditNote { by, text: text.into() }).await.map(|_| ()),
        }
    }

    /// The list for `--cell` with one more member.
    fn cell_with(&self, node_id: u64, address: &str) -> String {
        let mut members: Vec<_> = self
            .consensus()
            .status()
            .members
            .into_iter()
            .map(|member| (member.node_id, member.member.peer))
            .chain([(node_id, address.to_owned())])
            .collect();
        members.sort();
        members.dedup_by_key(|(id, _)| *id);
        members.iter().map(|(id, address)| format!("{id}={address}")).collect::<Vec<_>>().join(",")
    }

    /// The whole state at one moment, with all that this node had applied when it was asked.
    pub async fn backup(&self) -> Result<Backup, Failure> {
        self.may_all(Right::Admin, "")?;
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
        let calls = self.clone();
        tokio::task::spawn_blocking(move || {
            loop {
                let mut data = vec![0; CHUNK_BYTES];
                // It may take long, and the caller's rights may end meanwhile.
                let allowed = calls.may_all(Right::Admin, "").map_err(std::io::Error::other);
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
