//! The cell version: raised by a command, never lowered, and refused by a node that does not support it.

#![cfg(feature = "next-version")]

use lockkeeper_core::{Batch, CellTime, CellVersion, Command, LockTable, Refusal, Restore, TableError};

fn apply(table: &mut LockTable, command: Command) -> Result<Result<(), Refusal>, TableError> {
    let batch = Batch { now: CellTime(0), utc_ms: 0, commands: vec![command] };
    let applied = table.apply(table.applied() + 1, &batch)?;
    Ok(applied.answers[0].clone().map(|_| ()))
}

fn note() -> Command {
    Command::NextVersionNote { text: "new".into() }
}

fn raise(to: u32) -> Command {
    Command::RaiseCellVersion { to: CellVersion(to) }
}

#[test]
fn new_command_is_refused_before_its_version_and_accepted_from_then_on() {
    let mut table = LockTable::new();
    table.support(CellVersion::NEXT).expect("supported");
    assert_eq!(table.cell_version(), CellVersion::RELEASED);
    assert!(matches!(apply(&mut table, note()), Ok(Err(Refusal::Invalid(_)))));
    assert_eq!(apply(&mut table, raise(2)), Ok(Ok(())));
    assert_eq!(table.cell_version(), CellVersion::NEXT);
    assert_eq!(apply(&mut table, note()), Ok(Ok(())));
    assert_eq!(apply(&mut table, raise(1)), Ok(Ok(())));
    assert_eq!(table.cell_version(), CellVersion::NEXT, "never lowered");
}

#[test]
fn node_without_support_for_a_version_applies_nothing() {
    let mut table = LockTable::new();
    let before = table.clone();
    let refused = apply(&mut table, raise(2));
    let (needed, supported) = (CellVersion(2), CellVersion(1));
    assert_eq!(refused, Err(TableError::NewerVersion { needed, supported }));
    assert!(table == before, "nothing has changed");
}

#[test]
fn snapshot_carries_the_version() {
    let mut table = LockTable::new();
    table.support(CellVersion::NEXT).expect("supported");
    apply(&mut table, raise(2)).expect("applied").expect("raised");
    let mut restore = Restore::new();
    table.snapshot().for_each(|chunk| restore.push(&chunk).expect("read"));
    let mut restored = restore.finish().expect("whole");
    assert!(restored == table);
    assert!(restored.support(CellVersion::RELEASED).is_err());
    assert!(restored.support(CellVersion::NEXT).is_ok());
}
