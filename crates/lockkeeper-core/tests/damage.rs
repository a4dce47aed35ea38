//! Damaged logs and snapshots are detected: the table is never silently different.

use lockkeeper_core::{
    Acquire, Batch, CellTime, Command, LockName, LockTable, Locks, Mode, Restore, SessionId, SnapshotError,
    TableError, Wait,
};

fn apply(table: &mut LockTable, commands: Vec<Command>) {
    let batch = Batch { now: CellTime(table.applied() * 1_000_000), utc_ms: 0, commands };
    table.apply(table.applied() + 1, &batch).expect("the next entry");
}

fn open(session: u128) -> Command {
    Command::OpenSession {
        session: SessionId(session),
        ttl_ms: 10_000,
        owner: "somebody".into(),
        identity: None,
    }
}

fn acquire(session: u128, names: &[&str], request: &str, wait: Wait) -> Command {
    let locks = Locks::many(names.iter().map(|name| LockName::from(*name)));
    let request = Some(request.into());
    Command::Acquire(Acquire { request, wait, ..Acquire::new(SessionId(session), locks) })
}

/// A small table with every kind of record.
fn small_table() -> LockTable {
    let mut table = LockTable::new();
    apply(&mut table, vec![open(1), open(2), open(3), open(4)]);
    let shared = Acquire {
        mode: Mode::Shared,
        lock_delay_ms: 30_000,
        ..Acquire::new(SessionId(3), Locks::One("closed".into()))
    };
    let counted = Acquire {
        permits: Some(2),
        capacity: Some(5),
        ..Acquire::new(SessionId(1), Locks::One("pool".into()))
    };
    apply(
        &mut table,
        vec![
            acquire(1, &["held"], "r1", Wait::No),
            acquire(2, &["held"], "r1", Wait::ForMs(60_000)),
            acquire(4, &["held", "several"], "r1", Wait::Forever),
            acquire(4, &["free", "also"], "r2", Wait::No),
            acquire(2, &["held"], "r3", Wait::No),
            Command::Acquire(shared),
            Command::Acquire(counted),
            Command::PutValue {
                key: "k".into(),
                value: b"v".as_slice().into(),
                fence: None,
                if_version: None,
            },
            Command::PutValue {
                key: "l".into(),
                value: b"w".as_slice().into(),
                fence: None,
                if_version: None,
            },
            Command::DeleteValue { key: "l".into(), fence: None, if_version: None },
        ],
    );
    let free = table.grants_of(SessionId(4)).next().expect("a grant").token;
    let version = table.session(SessionId(3)).expect("it lives").version;
    apply(
        &mut table,
        vec![
            Command::Release { session: SessionId(4), lock: "free".into(), token: free, forget: false },
            Command::ExpireSession { session: SessionId(3), version },
        ],
    );
    table
}

/// A table of several chunks, with the cleanup of an ended session in progress.
fn large_table() -> LockTable {
    let mut table = small_table();
    let names: Vec<String> = (0..4_000).map(|number| format!("orders/{number}")).collect();
    for part in names.chunks(100) {
        apply(
            &mut table,
            part.iter().map(|name| acquire(1, &[name], &format!("r-{name}"), Wait::No)).collect(),
        );
    }
    apply(&mut table, vec![Command::CloseSession { session: SessionId(1) }]);
    assert!(table.next_wake() <= Some(table.now()), "cleanup is in progress");
    table
}

fn chunks(table: &LockTable) -> Vec<Vec<u8>> {
    table.snapshot().collect()
}

fn restore<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<LockTable, SnapshotError> {
    let mut restore = Restore::new();
    for piece in pieces {
        restore.push(piece)?;
    }
    restore.finish()
}

#[test]
fn repeated_entry_is_detected() {
    let mut table = small_table();
    let before = table.clone();
    let applied = table.applied();
    let again = Batch { now: table.now(), utc_ms: 0, commands: vec![acquire(1, &["new"], "r9", Wait::No)] };
    assert_eq!(table.apply(applied, &again), Err(TableError::OutOfOrder { applied, got: applied }));
    assert_eq!(table.skip(applied), Err(TableError::OutOfOrder { applied, got: applied }));
    assert!(table == before, "nothing has changed");
}

#[test]
fn missing_entry_is_detected() {
    let mut table = small_table();
    let before = table.clone();
    let applied = table.applied();
    let late = Batch { now: table.now(), utc_ms: 0, commands: vec![acquire(1, &["new"], "r9", Wait::No)] };
    for got in [0, applied + 2, u64::MAX] {
        assert_eq!(table.apply(got, &late), Err(TableError::OutOfOrder { applied, got }));
        assert_eq!(table.skip(got), Err(TableError::OutOfOrder { applied, got }));
    }
    assert!(table == before, "nothing has changed");
}

#[test]
fn entry_without_commands_is_counted() {
    let mut table = small_table();
    let next = table.applied() + 1;
    assert_eq!(table.skip(next), Ok(()));
    assert_eq!(table.applied(), next);
    assert!(table.apply(next, &Batch { now: table.now(), utc_ms: 0, commands: vec![] }).is_err());
}

#[test]
fn snapshot_in_pieces_of_any_size_restores_the_same_table() {
    let (small, large) = (small_table(), large_table());
    let bytes = chunks(&small).concat();
    for size in 1..=bytes.len() {
        assert!(restore(bytes.chunks(size)).as_ref() == Ok(&small), "pieces of {size}");
    }
    let bytes = chunks(&large).concat();
    for size in [1, 7, 8, 9, 1_000, 65_536, 70_000, 1 << 20] {
        assert!(restore(bytes.chunks(size)).as_ref() == Ok(&large), "pieces of {size}");
    }
}

#[test]
fn empty_table_has_a_snapshot() {
    let empty = LockTable::new();
    assert_eq!(restore(chunks(&empty).iter().map(Vec::as_slice)), Ok(empty));
}

#[test]
fn truncation_of_a_small_snapshot_is_detected() {
    let bytes = chunks(&small_table()).concat();
    for length in 0..bytes.len() {
        assert!(restore([&bytes[..length]]).is_err(), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn truncation_of_a_large_snapshot_is_detected() {
    let chunks = chunks(&large_table());
    assert!(chunks.len() > 3, "there are several chunks");
    let bytes = chunks.concat();
    let ends = chunks.iter().scan(0, |end, chunk| {
        *end += chunk.len();
        Some(*end)
    });
    let around_ends = ends.flat_map(|end| end - 10..end + 10);
    for length in around_ends.chain((0..bytes.len()).step_by(4_999)).filter(|length| *length < bytes.len()) {
        assert!(restore([&bytes[..length]]).is_err(), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn every_flipped_bit_of_a_snapshot_is_detected() {
    let bytes = chunks(&small_table()).concat();
    for at in 0..bytes.len() {
        for change in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF] {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            assert!(restore([damaged.as_slice()]).is_err(), "byte {at} changed by {change:#x}");
        }
    }
}

#[test]
fn missing_duplicated_or_reordered_chunk_is_detected() {
    let chunks = chunks(&large_table());
    let restore_in_order = |order: &[usize]| restore(order.iter().map(|number| chunks[*number].as_slice()));
    let order: Vec<usize> = (0..chunks.len()).collect();
    assert!(restore_in_order(&order).is_ok());
    for at in 0..order.len() {
        let mut missing = order.clone();
        missing.remove(at);
        assert!(restore_in_order(&missing).is_err(), "without chunk {at}");
        let mut doubled = order.clone();
        doubled.insert(at, at);
        assert!(restore_in_order(&doubled).is_err(), "chunk {at} twice");
        let mut swapped = order.clone();
        swapped.swap(at, (at + 1) % order.len());
        assert!(restore_in_order(&swapped).is_err(), "chunk {at} and the next one swapped");
    }
}

#[test]
fn chunk_of_another_snapshot_is_detected() {
    let mut table = large_table();
    let older = chunks(&table);
    apply(&mut table, vec![Command::Tick]);
    let newer = chunks(&table);
    for at in 0..older.len().min(newer.len()) {
        if older[at] == newer[at] {
            continue;
        }
        let mut mixed = newer.clone();
        mixed[at] = older[at].clone();
        assert!(restore(mixed.iter().map(Vec::as_slice)).is_err(), "chunk {at} of an older snapshot");
    }
}

#[test]
fn trailing_bytes_are_detected() {
    let bytes = chunks(&small_table()).concat();
    for more in [vec![0], vec![0; 7], bytes.clone()] {
        assert!(restore([bytes.as_slice(), &more]).is_err(), "{} bytes more", more.len());
    }
}

#[test]
fn other_data_is_reported_as_not_a_snapshot() {
    let error = restore([b"not a snapshot at all".as_slice()]).expect_err("it is none");
    assert_eq!(
        error.to_string(),
        "the snapshot is damaged at byte 0: it does not start like a snapshot of Lockkeeper"
    );
    assert_eq!(restore([]), Err(SnapshotError::Incomplete { found: 0, expected: 0 }));
}
