use futures_util::FutureExt;

use super::*;

/// After how many commands the next one is due.
fn commands_until_due(store: &SnapshotStore) -> u64 {
    store.inner.commands_since.store(0, Ordering::Relaxed);
    (1..)
        .find(|_| {
            store.count(1);
            store.due().now_or_never().is_some()
        })
        .expect("it comes")
}

#[test]
fn a_large_one_is_taken_less_often() {
    let (store, _) = SnapshotStore::open(None, 10).expect("in memory");
    assert_eq!(commands_until_due(&store), 10);
    for (bytes, commands) in
        [(BYTES_OF_A_LARGE_ONE - 1, 10), (BYTES_OF_A_LARGE_ONE, 20), (5 * BYTES_OF_A_LARGE_ONE, 60)]
    {
        store.inner.bytes.store(bytes, Ordering::Relaxed);
        assert_eq!(commands_until_due(&store), commands, "{bytes} bytes");
    }
}

#[test]
fn its_size_is_known_after_it_was_written_and_after_it_was_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = SnapshotStore::open(Some(folder.path()), 10).expect("an empty folder");
    let meta = SnapshotMeta { last_log_id: None, last_membership: StoredMembership::default() };
    let (_, image) = store.write(&meta, &LockTable::new()).expect("there is room");
    assert_eq!(store.inner.bytes.load(Ordering::Relaxed), image.len());
    let (again, _) = SnapshotStore::open(Some(folder.path()), 10).expect("whole");
    assert_eq!(again.inner.bytes.load(Ordering::Relaxed), image.len());
}
