//! Shared helpers of the log tests.

mod safety;
mod store;

use std::io;
use std::sync::Arc;

use lockkeeper_core::{Batch, CellTime, Command};
use lockkeeper_server::raft::encoded_batch::EncodedBatch;
use lockkeeper_server::raft::log::{self, Disk, LogConfig, LogError, LogStore, OpenReport, SyncMode};
use lockkeeper_server::raft::types::{Entry, LogId, Proposal, TypeConfig, Vote};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, RaftLogReader};

/// Small segments and no threads, so that everything happens in the order of the test.
pub(super) fn small() -> LogConfig {
    LogConfig { segment_bytes: 4096, cache_bytes: 2048, sync: SyncMode::Inline, prepare_ahead: false }
}

pub(super) fn log_id(term: u64, index: u64) -> LogId {
    openraft::testing::log_id::<TypeConfig>(term, 1, index)
}

/// Returns an entry with a value of this size that differs from those of other entries.
pub(super) fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let value: Vec<u8> = (0..bytes).map(|at| (at as u64 * 31 + index * 7 + term) as u8).collect();
    let put = Command::PutValue {
        key: format!("key-{index}").into(),
        value: value.into(),
        fence: None,
        if_version: None,
    };
    let batch = Arc::new(EncodedBatch::new(Batch { now: CellTime(index), utc_ms: 0, commands: vec![put] }));
    Entry::new(log_id(term, index), EntryPayload::Normal(Proposal { proposer: 7, sequence: index, batch }))
}

pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(super) fn open(
    disk: &(impl Disk + Clone + 'static),
    config: LogConfig,
) -> Result<(LogStore, OpenReport), LogError> {
    log::open(Arc::new(disk.clone()), config)
}

/// Appends and waits until the entries are durable.
pub(super) async fn append(store: &mut LogStore, entries: Vec<Entry>) -> io::Result<()> {
    let (tx, rx) = TypeConfig::oneshot();
    store.append(entries, IOFlushed::signal(tx)).await?;
    rx.await.map_err(io::Error::other)?
}

/// The whole content of a log.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Holds {
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogId>,
    pub(super) last: Option<LogId>,
    pub(super) committed: Option<LogId>,
    pub(super) entries: Vec<Entry>,
}

pub(super) async fn holds(store: &mut LogStore) -> io::Result<Holds> {
    let state = store.get_log_state().await?;
    let mut reader = store.get_log_reader().await;
    Ok(Holds {
        vote: reader.read_vote().await?,
        purged: state.last_purged_log_id,
        last: state.last_log_id,
        committed: store.read_committed().await?,
        entries: reader.try_get_log_entries(..).await?,
    })
}
