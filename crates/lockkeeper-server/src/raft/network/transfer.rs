//! Sends a snapshot to a member that is too far behind, in parts with a checksum each. Resumes where the last attempt ended.

use std::io::{self, Read};

use bytes::Bytes;
use lockkeeper_api::peer;
use openraft::error::Unreachable;
use openraft::raft::SnapshotResponse;
use openraft::type_config::alias::SnapshotOf;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::client::PeerClient;
use super::codec;
use crate::limits::blocking;
use crate::raft::snapshot::SnapshotImage;
use crate::raft::types::{TypeConfig, Vote};

/// Bytes in one message.
const PART_BYTES: usize = 256 * 1024;
/// Number of parts that are read ahead.
const PARTS_AHEAD: usize = 4;

/// Returns the ID of a snapshot. Equal table states have equal bytes on every member, so a transfer can resume after
/// another leader has taken over.
pub(super) fn snapshot_id(meta: &[u8], bytes: u64) -> u64 {
    u64::from(crc32fast::hash(meta)) << 32 | (bytes & 0xffff_ffff)
}

/// Sends the snapshot and waits until it is installed.
pub(super) async fn send(
    client: &mut PeerClient,
    vote: Vote,
    snapshot: SnapshotOf<TypeConfig, SnapshotImage>,
) -> Result<SnapshotResponse<TypeConfig>, Unreachable<TypeConfig>> {
    let mut grpc = client.grpc()?;
    let meta = codec::encode(&snapshot.meta).map_err(|why| client.unreachable(why))?;
    let vote = codec::encode(&vote).map_err(|why| client.unreachable(why))?;
    let bytes = snapshot.snapshot.len();
    let id = snapshot_id(&meta, bytes);
    let header = client.header();
    let offer = peer::SnapshotOfferRequest { header: Some(header.clone()), id, bytes };
    let offered = grpc.snapshot_offer(offer).await.map_err(|status| client.refused(&status))?.into_inner();
    let from = offered.bytes_there.min(bytes);
    tracing::info!(bytes, from, "sending a snapshot to a member that is behind");

    let first = peer::SnapshotPart { header: Some(header), id, bytes, vote, meta, ..Default::default() };
    let (parts, outgoing) = mpsc::channel(PARTS_AHEAD);
    let file = snapshot.snapshot.open_at(from).map_err(|error| client.unreachable(unreadable(&error)))?;
    let reading = tokio::spawn(read(file, from, first, parts));
    let sent = grpc.snapshot_send(ReceiverStream::new(outgoing)).await;
    match reading.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(client.unreachable(unreadable(&error))),
        Err(error) => return Err(client.unreachable(error)),
    }
    let answer = sent.map_err(|status| client.refused(&status))?;
    codec::decode(&answer.into_inner().body).map_err(|why| client.unreachable(why))
}

fn unreadable(error: &io::Error) -> String {
    format!("failed to read the snapshot: {error}")
}

/// Reads the file and passes its parts on, until the end of the file or until the receiver is dropped.
async fn read(
    mut file: Box<dyn Read + Send>,
    from: u64,
    first: peer::SnapshotPart,
    parts: mpsc::Sender<peer::SnapshotPart>,
) -> io::Result<()> {
    let mut offset = from;
    let mut next = first;
    loop {
        let (data, rest) = blocking::run(move || read_part(&mut *file).map(|data| (data, file))).await??;
        file = rest;
        let is_last = data.len() < PART_BYTES;
        next.offset = offset;
        next.crc = crc32fast::hash(&data);
        offset += data.len() as u64;
        next.data = Bytes::from(data);
        // The first part is always sent, even without data: it identifies the snapshot.
        if parts.send(next).await.is_err() || is_last {
            return Ok(());
        }
        next = peer::SnapshotPart::default();
    }
}

fn read_part(file: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut data = Vec::with_capacity(PART_BYTES);
    file.take(PART_BYTES as u64).read_to_end(&mut data)?;
    Ok(data)
}
