//! The rolling hash (S13): equal tables have equal hashes, also after a restore, and every difference shows in the hash.

#![cfg(feature = "mutations")]
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::{
    Acquire, Batch, CellTime, Command, LockTable, Locks, Restore, SessionId, SnapshotError,
};

fn apply(table: &mut LockTable, commands: Vec<Command>) {
    let next = table.applied() + 1;
    table.apply(next, &Batch { now: CellTime(next * 1_000), utc_ms: next, commands }).unwrap();
}

fn put(key: &str, value: &[u8]) -> Command {
    Command::PutValue { key: key.into(), value: value.into(), fence: None, if_version: None }
}

/// A table with a few sessions, locks and values.
fn table(values: u32) -> LockTable {
    let mut table = LockTable::new();
    let open = |id| Command::OpenSession {
        session: SessionId(id),
        ttl_ms: 10_000,
        owner: "test".into(),
        identity: None,
    };
    apply(&mut table, (1..=20).map(open).collect());
    let acquire = |id: u128| {
        let request = Some(format!("r{id}").into());
        let lock = Locks::One(format!("lock/{id}").into());
        Command::Acquire(Acquire { request, ..Acquire::new(SessionId(id), lock) })
    };
    apply(&mut table, (1..=20).map(acquire).collect());
    apply(&mut table, (0..values).map(|number| put(&format!("k{number}"), b"v")).collect());
    table
}

fn bytes(table: &LockTable) -> Vec<u8> {
    table.snapshot().flatten().collect()
}

fn restored(bytes: &[u8]) -> Result<LockTable, SnapshotError> {
    let mut restore = Restore::new();
    restore.push(bytes)?;
    restore.finish()
}

#[test]
fn equal_tables_have_equal_hashes_also_after_a_restore() {
    let (mut one, mut other) = (table(10), table(10));
    assert_eq!(one.hash(), other.hash());
    other = restored(&bytes(&other)).unwrap();
    for number in 0..200 {
        apply(&mut one, vec![put("k", &[number])]);
        apply(&mut other, vec![put("k", &[number])]);
        assert_eq!(one.hash(), other.hash());
    }
}

#[test]
fn every_entry_changes_the_hash() {
    let mut table = table(0);
    let mut seen = std::collections::BTreeSet::from([table.hash()]);
    for _ in 0..1_000 {
        apply(&mut table, vec![]);
        assert!(seen.insert(table.hash()), "a hash came twice");
    }
}

#[test]
fn different_counter_changes_all_later_hashes() {
    let (mut one, mut other) = (table(10), table(10));
    other.make_different();
    for _ in 0..100 {
        apply(&mut one, vec![Command::Tick]);
        apply(&mut other, vec![Command::Tick]);
        assert_ne!(one.hash(), other.hash());
    }
}

#[test]
fn different_unused_record_changes_the_hash_in_its_turn() {
    let (mut one, mut other) = (table(300), table(300));
    other.make_value_different("k137");
    let mut entries = 0;
    while one.hash() == other.hash() {
        apply(&mut one, vec![Command::Tick]);
        apply(&mut other, vec![Command::Tick]);
        entries += 1;
        assert!(entries < 100, "the record was not hashed");
    }
    println!("detected after {entries} entries");
}

/// The answers are equal, so that only the version differs.
#[cfg(feature = "next-version")]
#[test]
fn hash_covers_the_cell_version() {
    use lockkeeper_core::CellVersion;

    let (mut one, mut other) = (table(10), table(10));
    for (table, to) in [(&mut one, CellVersion::RELEASED), (&mut other, CellVersion::NEXT)] {
        table.support(CellVersion::NEXT).unwrap();
        let commands = vec![Command::RaiseCellVersion { to }];
        let next = table.applied() + 1;
        let batch = Batch { now: CellTime(next * 1_000), utc_ms: next, commands };
        let applied = table.apply(next, &batch).unwrap();
        assert_eq!((applied.answers.len(), applied.answers[0].is_ok(), applied.effects.len()), (1, true, 0));
    }
    assert_ne!(one.cell_version(), other.cell_version());
    for _ in 0..100 {
        assert_ne!(one.hash(), other.hash());
        apply(&mut one, vec![Command::Tick]);
        apply(&mut other, vec![Command::Tick]);
    }
}

#[test]
fn snapshot_with_a_wrong_hash_is_refused() {
    const PAYLOAD: usize = 16;
    let mut bytes = bytes(&table(10));
    assert!(restored(&bytes).is_ok());
    // Change one byte of a value, and correct the checksum of the only chunk.
    let key = bytes.windows(2).position(|some| some == b"k3").unwrap();
    assert_eq!(bytes[key + 3], b'v');
    bytes[key + 3] = b'w';
    let crc = crc32fast::hash(&bytes[PAYLOAD..]);
    bytes[PAYLOAD - 4..PAYLOAD].copy_from_slice(&crc.to_le_bytes());
    let refused = restored(&bytes).expect_err("it is another table").to_string();
    assert!(refused.contains("the hash of its records does not match"), "{refused}");
}
