//! A restored table reuses no token and no version (S1).

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::{
    Acquire, Answer, Batch, CellTime, Command, Fence, LockTable, Locks, Refusal, Reply, Restore, SessionId,
    Token,
};

const ANNA: SessionId = SessionId(1);

/// A table with one session.
struct Cell {
    table: LockTable,
}

impl Cell {
    fn new() -> Cell {
        let mut cell = Cell { table: LockTable::new() };
        cell.run(Command::OpenSession {
            session: ANNA,
            ttl_ms: 60_000,
            owner: "anna".into(),
            identity: None,
        })
        .unwrap();
        cell
    }

    fn restored(&self, floor: u64) -> Cell {
        let mut restore = Restore::new();
        self.table.snapshot().for_each(|chunk| restore.push(&chunk).unwrap());
        let mut table = restore.finish().unwrap();
        table.raise_to_floor(Token(floor)).unwrap();
        Cell { table }
    }

    fn run(&mut self, command: Command) -> Answer {
        let batch = Batch { now: CellTime(1), utc_ms: 0, commands: vec![command] };
        let mut applied = self.table.apply(self.table.applied() + 1, &batch).unwrap();
        applied.answers.remove(0)
    }

    fn acquire(&mut self, lock: &str) -> u64 {
        let acquire = Acquire::new(ANNA, Locks::One(lock.into()));
        match self.run(Command::Acquire(acquire)) {
            Ok(Reply::Granted(grant)) => grant.token.0,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, key: &str, fence: Option<Fence>, if_version: Option<u64>) -> Result<u64, Refusal> {
        let value = b"v".as_slice().into();
        match self.run(Command::PutValue { key: key.into(), value, fence, if_version }) {
            Ok(Reply::Put { version }) => Ok(version),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal),
        }
    }

    /// Uses the cell for a while. Returns every number that it issued.
    fn work(&mut self, count: u64) -> Vec<u64> {
        let mut issued: Vec<u64> = (0..count).map(|number| self.acquire(&format!("work-{number}"))).collect();
        issued.extend((0..count).map(|_| self.put("changed", None, None).unwrap()));
        self.run(Command::DeleteValue { key: "changed".into(), fence: None, if_version: None }).unwrap();
        issued.push(self.put("changed", None, None).unwrap());
        issued
    }
}

/// Checks that the old cell, which continues after its backup, and two cells restored from it issue different numbers,
/// all below 2^53.
fn numbers_differ() -> Result<(), String> {
    let mut old = Cell::new();
    let mut issued = old.work(10);
    let backup = old.restored(old.table.highest_number());
    old.run(Command::CloseSession { session: ANNA }).unwrap();
    old.run(Command::OpenSession { session: ANNA, ttl_ms: 60_000, owner: "anna".into(), identity: None })
        .unwrap();
    issued.extend(old.work(50));
    for floor in [1_000, 2_000] {
        let mut restored = backup.restored(floor);
        restored.run(Command::CloseSession { session: ANNA }).unwrap();
        restored
            .run(Command::OpenSession { session: ANNA, ttl_ms: 60_000, owner: "anna".into(), identity: None })
            .unwrap();
        let highest = issued.iter().copied().max().unwrap_or(0);
        let new = restored.work(50);
        if let Some(reused) = new.iter().find(|number| **number <= highest || **number > Token::MAX.0) {
            return Err(format!("{reused} was issued after {highest}"));
        }
        issued.extend(new);
    }
    Ok(())
}

#[test]
fn restored_tables_issue_numbers_above_all_earlier_ones() {
    assert_eq!(numbers_differ(), Ok(()));
}

/// Catches the mutation here, because the simulation does not restore backups.
#[cfg(feature = "mutations")]
#[test]
fn restored_table_that_keeps_its_tokens_is_noticed() {
    use lockkeeper_core::mutation::{Mutation, put_back};

    put_back(Some(Mutation::RestoreKeepsTokens));
    let checked = numbers_differ();
    put_back(None);
    assert!(checked.is_err());
}

#[test]
fn values_keep_their_content_and_take_the_floor_as_version() {
    let mut old = Cell::new();
    assert_eq!(old.put("kept", None, None), Ok(1));
    let mut new = old.restored(1_000);
    assert_eq!(new.put("kept", None, Some(1)), Err(Refusal::VersionMismatch { version: 1_000 }));
    assert_eq!(new.table.value("kept").map(|value| &*value.bytes), Some(b"v".as_slice()));
    assert_eq!(new.put("kept", None, Some(1_000)), Ok(1_001));
    assert_eq!(new.put("fresh", None, Some(0)), Ok(1_001));
    new.run(Command::DeleteValue { key: "kept".into(), fence: None, if_version: None }).unwrap();
    assert_eq!(new.put("kept", None, Some(0)), Ok(1_002));
}

#[test]
fn fenced_writes_go_on_after_a_restore() {
    let mut old = Cell::new();
    let held = old.acquire("job");
    let fence = |token| Some(Fence { lock: "job".into(), token: Token(token) });
    old.put("k", fence(held), None).unwrap();
    let mut new = old.restored(1_000);
    assert_eq!(new.put("k", fence(held), None), Ok(1_001), "the holder of the backup still holds");
    // Tokens that the old cell granted after the backup are unknown here, and refused.
    assert!(matches!(new.put("k", fence(held + 1), None), Err(Refusal::StaleToken { .. })));
    let release = Command::Release { session: ANNA, lock: "job".into(), token: Token(held), forget: false };
    new.run(release).unwrap();
    let next = new.acquire("job");
    assert_eq!(next, 1_001);
    assert!(matches!(new.put("k", fence(held), None), Err(Refusal::StaleToken { .. })));
    assert_eq!(new.put("k", fence(next), None), Ok(1_002));
}

#[test]
fn floors_that_are_too_low_or_leave_no_tokens_are_refused() {
    let mut cell = Cell::new();
    cell.acquire("a");
    for _ in 0..5 {
        cell.put("k", None, None).unwrap();
    }
    assert_eq!(cell.table.highest_number(), 5);
    let before = cell.table.clone();
    assert!(matches!(cell.table.raise_to_floor(Token(4)), Err(Refusal::Invalid(_))));
    assert!(matches!(cell.table.raise_to_floor(Token::MAX), Err(Refusal::Limit(_))));
    assert!(matches!(cell.table.raise_to_floor(Token(u64::MAX)), Err(Refusal::Limit(_))));
    assert!(cell.table == before, "nothing has changed");
    cell.table.raise_to_floor(Token(5)).unwrap();
}
