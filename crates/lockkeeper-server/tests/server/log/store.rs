//! Normal operation of the log, a full disk, and openraft's own suite.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_server::raft::log::{
    self, Disk, Faults, FaultyDisk, LogConfig, LogError, LogStore, MemoryDisk, RealDisk, Room, SECTOR_BYTES,
    SyncMode,
};
use lockkeeper_server::raft::types::{LogId, SnapshotMeta, StoredMembership, TypeConfig, Vote};
use openraft::storage::{EntryResponder, IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::{OneshotReceiverOf, SnapshotOf};
use openraft::{EntryPayload, OptionalSend, RaftLogReader, RaftSnapshotBuilder, StorageError};

use super::*;

fn threaded() -> LogConfig {
    LogConfig { segment_bytes: 8192, cache_bytes: 4096, sync: SyncMode::Thread, prepare_ahead: true }
}

/// Polls a condition until it holds.
fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::yield_now();
    }
}

/// Fills the log on a full disk, where it has only its preallocated segments.
async fn fill(store: &mut LogStore, disk: &FaultyDisk, checks_space: bool) {
    disk.set_faults(Faults { capacity_bytes: Some(0), ..Faults::default() });
    const BYTES: usize = 300;
    for index in 0..200 {
        if checks_space && store.room_for(0, 2 * BYTES) != Room::Yes {
            return;
        }
        // Not awaited, like openraft does: entries that wait for space stay queued.
        let (tx, _durable) = TypeConfig::oneshot();
        store.append(vec![entry(1, index, BYTES)], IOFlushed::signal(tx)).await.unwrap();
    }
    assert!(!checks_space, "there was always space");
}

#[test]
fn vote_is_not_blocked_by_a_full_disk_if_space_is_checked_before_each_append() {
    for config in [small(), threaded()] {
        block_on(async {
            let disk = FaultyDisk::new();
            let (mut store, _) = open(&disk, config.clone()).unwrap();
            fill(&mut store, &disk, true).await;
            let vote = Vote::new(2, 1);
            let saved = tokio::time::timeout(Duration::from_secs(20), store.save_vote(&vote)).await;
            saved.expect("the vote does not wait").unwrap();
            let (store, _) = open(&disk.copy(), config.clone()).unwrap();
            assert_eq!(store.vote().unwrap(), Some(vote), "it is on the disk");

            // Without the check the vote is blocked for as long as the disk is full.
            let disk = FaultyDisk::new();
            let (mut store, _) = open(&disk, config).unwrap();
            fill(&mut store, &disk, false).await;
            assert!(tokio::time::timeout(Duration::from_millis(300), store.save_vote(&vote)).await.is_err());
            disk.set_faults(Faults::default());
        });
    }
}

#[test]
fn everything_survives_a_reopen_in_both_modes() {
    for sync in [SyncMode::Inline, SyncMode::Thread] {
        for prepare_ahead in [false, true] {
            block_on(async {
                let disk = FaultyDisk::new();
                let config = LogConfig { sync, prepare_ahead, ..small() };
                let (mut store, report) = open(&disk, config.clone()).unwrap();
                assert_eq!((report.entries, report.first_index, report.last_index), (0, None, None));
                store.save_vote(&Vote::new(2, 1)).await.unwrap();
                append(&mut store, (0..40).map(|i| entry(1, i, 300)).collect()).await.unwrap();
                store.truncate_after(Some(log_id(1, 30))).await.unwrap();
                append(&mut store, (31..50).map(|i| entry(2, i, 300)).collect()).await.unwrap();
                store.purge(log_id(1, 20)).await.unwrap();
                store.save_vote(&Vote::new(3, 1)).await.unwrap();
                store.save_committed(Some(log_id(2, 45))).await.unwrap();
                let held = holds(&mut store).await.unwrap();
                assert_eq!(held.entries.len(), 29);
                // No write followed the last commit hint: closing the log writes it.
                drop(store);
                let (mut store, report) = open(&disk, config).unwrap();
                assert_eq!(holds(&mut store).await.unwrap(), held);
                assert_eq!((report.first_index, report.last_index), (Some(21), Some(49)));
                assert_eq!(report.bytes_cut, 0);
            });
        }
    }
}

#[test]
fn purged_segments_are_deleted_and_the_rest_opens() {
    block_on(async {
        let disk = FaultyDisk::new();
        let (mut store, _) = open(&disk, small()).unwrap();
        for index in 0..60 {
            append(&mut store, vec![entry(1, index, 900)]).await.unwrap();
        }
        let before = disk.list().unwrap().len();
        store.purge(log_id(1, 55)).await.unwrap();
        let after = disk.list().unwrap();
        assert!(before > 15 && after.len() <= 3, "{before} segments, then {after:?}");
        // A snapshot far ahead of the log empties it.
        store.purge(log_id(4, 1000)).await.unwrap();
        append(&mut store, vec![entry(4, 1001, 10)]).await.unwrap();
        let held = holds(&mut store).await.unwrap();
        drop(store);
        let (mut store, _) = open(&disk, small()).unwrap();
        assert_eq!(holds(&mut store).await.unwrap(), held);
        assert_eq!(held.purged, Some(log_id(4, 1000)));
    });
}

#[test]
fn an_entry_larger_than_a_segment_works() {
    for prepare_ahead in [false, true] {
        block_on(async {
            let disk = FaultyDisk::new();
            let config = LogConfig { prepare_ahead, ..small() };
            let (mut store, _) = open(&disk, config.clone()).unwrap();
            append(&mut store, vec![entry(1, 0, 100_000)]).await.unwrap();
            append(&mut store, vec![entry(1, 1, 10), entry(1, 2, 50_000), entry(1, 3, 10)]).await.unwrap();
            let held = holds(&mut store).await.unwrap();
            drop(store);
            let (mut store, _) = open(&disk, config).unwrap();
            assert_eq!(holds(&mut store).await.unwrap(), held);
            assert_eq!(held.entries[2], entry(1, 2, 50_000));
        });
    }
}

#[test]
fn append_with_a_gap_is_refused_and_changes_nothing() {
    block_on(async {
        let (mut store, _) = open(&MemoryDisk::new(), small()).unwrap();
        append(&mut store, vec![entry(1, 0, 10)]).await.unwrap();
        let held = holds(&mut store).await.unwrap();
        append(&mut store, vec![entry(1, 1, 10), entry(1, 3, 10)]).await.unwrap_err();
        assert_eq!(holds(&mut store).await.unwrap(), held);
        append(&mut store, vec![entry(1, 1, 10)]).await.unwrap();
    });
}

#[test]
fn entries_are_readable_before_they_are_durable_and_share_syncs() {
    block_on(async {
        let disk = FaultyDisk::new();
        let (mut store, _) = open(&disk, LogConfig { prepare_ahead: false, ..threaded() }).unwrap();
        disk.set_faults(Faults { sync_delay: Duration::from_millis(50), ..Faults::default() });
        let before = disk.syncs();
        let mut waiting = Vec::new();
        for index in 0..20 {
            let (tx, rx) = TypeConfig::oneshot();
            store.append([entry(1, index, 10)], IOFlushed::signal(tx)).await.unwrap();
            waiting.push(rx);
            let read = store.get_log_reader().await.try_get_log_entries(..).await.unwrap();
            assert_eq!(read.len() as u64, index + 1);
        }
        for rx in waiting {
            rx.await.unwrap().unwrap();
        }
        assert!(disk.syncs() - before <= 4, "{} syncs for 20 appends", disk.syncs() - before);
    });
}

/// Truncation while the truncated entries are still queued: their positions must not be mixed up with those of new entries.
#[test]
fn a_truncated_append_that_is_still_queued_leaves_no_trace() {
    block_on(async {
        let disk = FaultyDisk::new();
        let config = LogConfig { cache_bytes: 0, prepare_ahead: false, ..threaded() };
        let (mut store, _) = open(&disk, config.clone()).unwrap();
        disk.set_faults(Faults { sync_delay: Duration::from_millis(20), ..Faults::default() });
        let mut last = None;
        for term in 1..6 {
            let (tx, rx) = TypeConfig::oneshot();
            store.truncate_after(None).await.unwrap();
            store.append((1..8).map(|i| entry(term, i, 100)), IOFlushed::signal(tx)).await.unwrap();
            last = Some(rx);
        }
        last.unwrap().await.unwrap().unwrap();
        // Nothing is cached: each entry is read from its recorded position.
        let held = holds(&mut store).await.unwrap();
        assert_eq!(held.entries, (1..8).map(|i| entry(5, i, 100)).collect::<Vec<_>>());
        drop(store);
        let (mut store, _) = open(&disk, config).unwrap();
        assert_eq!(holds(&mut store).await.unwrap(), held);
    });
}

#[test]
fn readers_on_other_threads_see_a_log_without_gaps() {
    let disk = MemoryDisk::new();
    let (mut store, _) = open(&disk, threaded()).unwrap();
    let reading: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = store.reader();
            std::thread::spawn(move || {
                block_on(async {
                    let mut last = 0;
                    while last < 400 {
                        let entries = reader.try_get_log_entries(..).await.unwrap();
                        for pair in entries.windows(2) {
                            assert_eq!(pair[0].log_id.index + 1, pair[1].log_id.index);
                        }
                        for found in &entries {
                            assert_eq!(found, &entry(1, found.log_id.index, 200));
                        }
                        last = entries.last().map_or(last, |entry| entry.log_id.index);
                    }
                })
            })
        })
        .collect();
    block_on(async {
        for index in 0..=400 {
            append(&mut store, vec![entry(1, index, 200)]).await.unwrap();
            if index % 50 == 49 {
                store.purge(log_id(1, index - 30)).await.unwrap();
            }
        }
    });
    reading.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Appends one entry and returns the receiver of its completion.
async fn begin_append(
    store: &mut LogStore,
    index: u64,
    bytes: usize,
) -> OneshotReceiverOf<TypeConfig, io::Result<()>> {
    let (tx, rx) = TypeConfig::oneshot();
    store.append(vec![entry(1, index, bytes)], IOFlushed::signal(tx)).await.unwrap();
    rx
}

/// Returns the result of an append, or `None` if it waits for space. On a busy machine an append may be slow.
async fn acknowledged_or_full<T>(
    store: &LogStore,
    durable: &mut (impl Future<Output = Result<T, impl std::fmt::Debug>> + Unpin),
) -> Option<T> {
    loop {
        match tokio::time::timeout(Duration::from_secs(1), &mut *durable).await {
            Ok(result) => return Some(result.unwrap()),
            Err(_) if store.space().trouble.is_some() => return None,
            Err(_) => {}
        }
    }
}

#[test]
fn full_disk_is_reported_acknowledges_nothing_and_resumes_when_there_is_space() {
    for sync in [SyncMode::Inline, SyncMode::Thread, SyncMode::Adaptive] {
        for prepare_ahead in [false, true] {
            block_on(async {
                let disk = FaultyDisk::new();
                disk.set_faults(Faults { capacity_bytes: Some(3 * 8192), ..Faults::default() });
                let config = LogConfig { sync, prepare_ahead, ..threaded() };
                let (mut store, _) = open(&disk, config.clone()).unwrap();
                let mut acknowledged = 0;
                let mut waiting = loop {
                    let mut durable = begin_append(&mut store, acknowledged, 1000).await;
                    match acknowledged_or_full(&store, &mut durable).await {
                        Some(result) => result.unwrap(),
                        None => break durable,
                    }
                    acknowledged += 1;
                };
                assert!(acknowledged >= 15, "{acknowledged}");
                assert!(store.space().trouble.is_some());
                assert!(store.failure().is_none(), "a full disk is not a failure");
                // Further appends are accepted meanwhile and keep their order.
                let mut last = begin_append(&mut store, acknowledged + 1, 10).await;
                let both = async { tokio::join!(&mut waiting, &mut last) };
                assert!(tokio::time::timeout(Duration::from_millis(600), both).await.is_err());

                disk.set_faults(Faults::default());
                waiting.await.unwrap().unwrap();
                last.await.unwrap().unwrap();
                assert!(store.space().trouble.is_none());
                let held = holds(&mut store).await.unwrap();
                drop(store);
                let (mut store, report) = open(&disk, config).unwrap();
                assert_eq!(report.entries, acknowledged + 2);
                assert_eq!(holds(&mut store).await.unwrap(), held);
            });
        }
    }
}

/// The space that the node asked for can be used up on a full disk, by entries of one sector each.
#[test]
fn kept_space_is_left_on_a_full_disk() {
    const KEPT_BYTES: u64 = 100 << 10;
    const ENTRY_BYTES: usize = 300;
    block_on(async {
        let disk = FaultyDisk::new();
        let (mut store, _) = open(&disk, threaded()).unwrap();
        store.keep_for_entries(KEPT_BYTES);
        // There is some headroom: the checkpoint of each segment takes space too.
        let enough = KEPT_BYTES + threaded().segment_bytes;
        eventually("spares", || store.space().entry_bytes() >= enough);
        disk.set_faults(Faults { capacity_bytes: Some(0), ..Faults::default() });
        let left = store.space().entry_bytes();
        let mut index = 0;
        loop {
            // A segment that is made of a spare is ready soon.
            let room = loop {
                match store.room_for(0, ENTRY_BYTES) {
                    Room::Soon => tokio::task::yield_now().await,
                    room => break room,
                }
            };
            if room == Room::No {
                break;
            }
            append(&mut store, vec![entry(1, index, ENTRY_BYTES)]).await.unwrap();
            index += 1;
        }
        let written = index * SECTOR_BYTES as u64;
        println!("{index} entries, {written} of {left} bytes");
        assert!(written >= KEPT_BYTES, "{written} bytes");
        assert!(store.space().entry_bytes() <= 4 * SECTOR_BYTES as u64, "{:?}", store.space());
        drop(store);
        let (_, report) = open(&disk.copy(), threaded()).unwrap();
        assert_eq!(report.entries, index);
    });
}

/// Appends to a disk that fills up, until an append waits for space. Returns the number of acknowledged entries, and the
/// number that a crash leaves behind.
fn acknowledged_and_stored(sync: SyncMode) -> (u64, u64) {
    const APPENDS_MAX: u64 = 40;
    block_on(async {
        let disk = FaultyDisk::new();
        disk.set_faults(Faults { capacity_bytes: Some(8192), ..Faults::default() });
        let config = LogConfig { sync, ..threaded() };
        let (mut store, _) = open(&disk, config.clone()).unwrap();
        let mut acknowledged = 0;
        while acknowledged < APPENDS_MAX {
            let mut durable = begin_append(&mut store, acknowledged, 1000).await;
            if acknowledged_or_full(&store, &mut durable).await.is_none() {
                break;
            }
            acknowledged += 1;
        }
        let (_, report) = open(&disk.copy(), config).unwrap();
        (acknowledged, report.entries)
    })
}

#[test]
fn acknowledged_entries_survive_a_crash_on_a_full_disk_and_no_others() {
    for sync in [SyncMode::Inline, SyncMode::Thread] {
        let (acknowledged, stored) = acknowledged_and_stored(sync);
        assert_eq!(acknowledged, stored);
        assert!(acknowledged > 0);
    }
    // Inline, because a mutation applies to one thread.
    mutation::put_back(Some(Mutation::AcknowledgeWithoutRoom));
    let (acknowledged, stored) = acknowledged_and_stored(SyncMode::Inline);
    mutation::put_back(None);
    assert!(acknowledged > stored, "the bug is noticed: {acknowledged} acknowledged, {stored} stored");
}

#[test]
fn slow_disk_groups_queued_appends_into_few_syncs_in_order() {
    const ENTRIES: u64 = 100;
    block_on(async {
        let disk = FaultyDisk::new();
        let config = LogConfig { sync: SyncMode::Adaptive, segment_bytes: 1 << 20, ..threaded() };
        let (mut store, _) = open(&disk, config).unwrap();
        disk.set_faults(Faults { sync_delay: Duration::from_millis(8), ..Faults::default() });
        // It takes a few syncs to detect that the disk is slow.
        for index in 0..4 {
            append(&mut store, vec![entry(1, index, 100)]).await.unwrap();
        }
        let (syncs, began) = (disk.syncs(), Instant::now());
        let mut pending = Vec::new();
        for index in 4..4 + ENTRIES {
            pending.push(begin_append(&mut store, index, 100).await);
        }
        let queued = began.elapsed();
        for (place, durable) in pending.into_iter().enumerate() {
            durable.await.unwrap().unwrap_or_else(|error| panic!("{place}: {error}"));
        }
        let syncs = disk.syncs() - syncs;
        println!("{ENTRIES} appends queued in {queued:?}, durable in {:?}, {syncs} syncs", began.elapsed());
        assert!(syncs <= ENTRIES / 4, "{syncs} syncs for {ENTRIES} appends");
    });
}

#[test]
fn append_does_not_wait_for_the_next_segment() {
    const SEGMENT_CREATION: Duration = Duration::from_secs(4);
    block_on(async {
        let disk = FaultyDisk::new();
        let config = LogConfig { sync: SyncMode::Adaptive, ..threaded() };
        let (mut store, _) = open(&disk, config).unwrap();
        eventually("the second segment", || store.space().next_bytes > 0);
        disk.set_faults(Faults { create_delay: SEGMENT_CREATION, ..Faults::default() });
        // The first two segments hold about 14 entries; the third is being created.
        let mut last = None;
        let began = Instant::now();
        for index in 0..20 {
            last = Some(begin_append(&mut store, index, 1000).await);
        }
        let queued = began.elapsed();
        assert!(queued < SEGMENT_CREATION / 2, "{queued:?} for the appends: the caller waited for a segment");
        last.unwrap().await.unwrap().unwrap();
        println!("20 appends queued in {queued:?}, durable in {:?}", began.elapsed());
        assert!(began.elapsed() > SEGMENT_CREATION / 2, "the third segment was never waited for");
    });
}

#[test]
fn space_freed_before_the_segment_is_full_causes_no_delay() {
    block_on(async {
        let disk = FaultyDisk::new();
        disk.set_faults(Faults { capacity_bytes: Some(8192), ..Faults::default() });
        let (mut store, _) = open(&disk, threaded()).unwrap();
        append(&mut store, vec![entry(1, 0, 1000)]).await.unwrap();
        eventually("trouble", || store.space().trouble.is_some());
        assert!(store.space().current_bytes > 4096);
        append(&mut store, vec![entry(1, 1, 1000)]).await.unwrap();
        disk.set_faults(Faults::default());
        eventually("the next segment", || store.space().trouble.is_none() && store.space().next_bytes > 0);
        for index in 2..40 {
            append(&mut store, vec![entry(1, index, 1000)]).await.unwrap();
        }
    });
}

#[test]
fn real_folder_is_locked_by_one_process_and_can_be_reopened() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data").join("log");
        let config = LogConfig { segment_bytes: 1 << 16, ..LogConfig::default() };
        let real = || RealDisk::open(&path).map(Arc::new);
        let (mut store, _) = log::open(real().unwrap(), config.clone()).unwrap();
        assert_eq!(real().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        append(&mut store, (0..300).map(|i| entry(1, i, 1000)).collect()).await.unwrap();
        let held = holds(&mut store).await.unwrap();
        drop(store);
        let (mut store, report) = log::open(real().unwrap(), config).unwrap();
        assert_eq!(holds(&mut store).await.unwrap(), held);
        assert_eq!(report.entries, 300);
        store.purge(log_id(1, 250)).await.unwrap();
        drop(store);
        assert!(std::fs::read_dir(&path).unwrap().count() <= 5);
    });
}

#[test]
fn newer_format_is_distinguished_from_damage() {
    block_on(async {
        let disk = FaultyDisk::new();
        drop(open(&disk, small()).unwrap());
        let name = disk.list().unwrap().remove(0);
        let mut head = disk.bytes(&name).unwrap()[..512].to_vec();
        head[12] = 2;
        let crc = crc32fast::hash(&head[12..]);
        head[8..12].copy_from_slice(&crc.to_le_bytes());
        disk.overwrite(&name, 0, &head).unwrap();
        assert!(matches!(open(&disk, small()), Err(LogError::Format { found: 2, .. })));
    });
}

/// A minimal state machine for openraft's suite, which only tracks the applied position.
#[derive(Debug, Clone, Default)]
struct Machine {
    applied: Option<LogId>,
    membership: StoredMembership,
    /// Shared with the builders.
    snapshot: Arc<Mutex<Option<SnapshotMeta>>>,
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, ()>, io::Error> {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        *self.snapshot.lock().unwrap() = Some(meta.clone());
        Ok(openraft::Snapshot { meta, snapshot: () })
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            self.applied = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, _: ()) -> Result<(), io::Error> {
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        *self.snapshot.lock().unwrap() = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<TypeConfig, ()>>, io::Error> {
        Ok(self.snapshot.lock().unwrap().clone().map(|meta| openraft::Snapshot { meta, snapshot: () }))
    }
}

struct Builder(LogConfig);

impl StoreBuilder<TypeConfig, LogStore, Machine> for Builder {
    async fn build(&self) -> Result<((), LogStore, Machine), StorageError<TypeConfig>> {
        let (store, _) = open(&MemoryDisk::new(), self.0.clone()).unwrap();
        Ok(((), store, Machine::default()))
    }
}

#[test]
fn openraft_suite_passes() {
    // The suite sleeps a lot, so the settings run in parallel.
    let running = [small(), threaded(), LogConfig::in_memory()].map(|config| {
        std::thread::spawn(|| block_on(async { Suite::test_all(Builder(config)).await.unwrap() }))
    });
    running.into_iter().for_each(|thread| thread.join().unwrap());
}
