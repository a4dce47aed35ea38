//! Fuzz targets of the log's decoders, for `crate::fuzz`.

use std::sync::{Arc, OnceLock};

use lockkeeper_core::{Batch, CellTime, Command};
use openraft::entry::RaftEntry;
use openraft::storage::RaftLogStorage;

use super::record::Record;
use super::{Disk, FaultyDisk, LogConfig, SyncMode};
use crate::raft::encoded_batch::EncodedBatch;
use crate::raft::types::{Entry, Proposal, TypeConfig, Vote};

/// Decodes record after record, and encodes each one again.
pub(crate) fn records(bytes: &[u8]) {
    let mut offset = 0;
    while offset < bytes.len() {
        let Ok((record, payload)) = Record::decode(bytes, offset) else { return };
        assert!(payload.end <= bytes.len() && payload.end > offset, "the payload lies within the input");
        let mut again = Vec::new();
        if record.encode(&mut again).is_ok() {
            assert_eq!(Record::decode(&again, 0).map(|(record, _)| record), Ok(record));
        }
        offset = payload.end;
    }
}

/// Returns a copy of a log with 19 votes.
pub(crate) fn sample() -> FaultyDisk {
    static SAMPLE: OnceLock<FaultyDisk> = OnceLock::new();
    SAMPLE.get_or_init(make).copy()
}

fn make() -> FaultyDisk {
    let disk = FaultyDisk::new();
    let config =
        LogConfig { segment_bytes: 4096, cache_bytes: 2048, sync: SyncMode::Inline, prepare_ahead: false };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    if let (Ok((mut store, _)), Ok(runtime)) = (super::open(Arc::new(disk.clone()), config), runtime) {
        for term in 1..20 {
            let saved = runtime.block_on(store.save_vote(&Vote::new(term, 1)));
            assert!(saved.is_ok(), "failed to write the sample log");
        }
    }
    disk
}

/// Overwrites a part of the log.
pub(crate) fn damage(disk: &FaultyDisk, place: usize, bytes: &[u8]) {
    let Ok(names) = disk.list() else { return };
    let Some(name) = names.get(place % names.len().max(1)) else { return };
    let Ok(content) = disk.bytes(name) else { return };
    let offset = place % content.len().max(1);
    let fits = bytes.len().min(content.len() - offset);
    assert!(disk.overwrite(name, offset, &bytes[..fits]).is_ok());
}

/// Recovers the log. An error must have a message.
pub(crate) fn recover(disk: &FaultyDisk) {
    match super::recover::recover(disk, 2048) {
        Ok(found) => assert!(found.bytes_cut <= found.bytes + (1 << 20)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Returns encoded records of every kind except checkpoints.
pub(crate) fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let id = openraft::testing::log_id::<TypeConfig>(3, 1, 7);
    let batch = Batch { now: CellTime(5), utc_ms: 0, commands: vec![Command::Tick] };
    let proposal = Proposal { proposer: 7, sequence: 9, batch: Arc::new(EncodedBatch::new(batch)) };
    let entry = Entry::new(id, openraft::EntryPayload::Normal(proposal));
    let written = |records: &[Record]| {
        let mut bytes = Vec::new();
        for record in records {
            assert!(record.encode(&mut bytes).is_ok());
        }
        bytes
    };
    vec![
        ("entry", written(&[Record::Entry(entry)])),
        ("votes", written(&[Record::Vote(Vote::new(3, 1)), Record::TruncateAfter(Some(id))])),
        ("marks", written(&[Record::Purge(id), Record::Committed(Some(id)), Record::TruncateAfter(None)])),
    ]
}
