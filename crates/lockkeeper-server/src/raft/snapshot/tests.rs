use futures_util::FutureExt;

use super::*;

/// Returns the number of commands after which the next snapshot is due.
fn commands_until_due(store: &SnapshotStore) -> u64 {
    store.inner.commands_since.store(0, Ordering::Relaxed);
    (1..)
        .find(|_| {
            store.count_commands(1);
            store.due().now_or_never().is_some()
        })
        .expect("a snapshot becomes due")
}

#[test]
fn a_large_snapshot_is_taken_less_often() {
    let (store, _) = SnapshotStore::open(None, 10).expect("in memory");
    assert_eq!(commands_until_due(&store), 10);
    for (bytes, commands) in
        [(LARGE_SNAPSHOT_BYTES - 1, 10), (LARGE_SNAPSHOT_BYTES, 20), (5 * LARGE_SNAPSHOT_BYTES, 60)]
    {
        store.inner.bytes.store(bytes, Ordering::Relaxed);
        assert_eq!(commands_until_due(&store), commands, "{bytes} bytes");
    }
}

#[test]
fn the_size_is_known_after_writing_and_after_reading() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = SnapshotStore::open(Some(folder.path()), 10).expect("an empty folder");
    let meta = SnapshotMeta { last_log_id: None, last_membership: StoredMembership::default() };
    let (_, image) =
        store.write(&meta, &LockTable::new(), || true).expect("it is written").expect("it may be");
    assert_eq!(store.inner.bytes.load(Ordering::Relaxed), image.len());
    let (again, _) = SnapshotStore::open(Some(folder.path()), 10).expect("whole");
    assert_eq!(again.inner.bytes.load(Ordering::Relaxed), image.len());
}
