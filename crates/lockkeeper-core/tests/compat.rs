//! What earlier versions have written can still be read: a snapshot and a batch of the log from before there were
//! identities, rules and quotas.

#![allow(clippy::unwrap_used)]

use lockkeeper_core::{Batch, Command, LockTable, Restore, SessionId, Token};

fn restored(bytes: &[u8]) -> LockTable {
    let mut restore = Restore::new();
    restore.push(bytes).unwrap();
    restore.finish().unwrap()
}

#[test]
fn a_snapshot_from_before_identities() {
    let table = restored(include_bytes!("compat/before-identities.snapshot"));
    assert_eq!(table.session(SessionId(7)).unwrap().identity, None);
    assert!(table.belongs_to(SessionId(7), None));
    assert!(!table.belongs_to(SessionId(7), Some("ada")));
    assert!(table.access().is_empty());
    assert!(table.holds(&"orders/1".into(), Token(1)));
    let again: Vec<u8> = table.snapshot().flatten().collect();
    assert_eq!(again, include_bytes!("compat/before-identities.snapshot"), "and it is written as before");
}

#[test]
fn a_log_from_before_identities() {
    let batch: Batch = postcard::from_bytes(include_bytes!("compat/before-identities.batch")).unwrap();
    assert_eq!(batch.commands.len(), 11);
    assert!(matches!(batch.commands.last(), Some(Command::Tick)));
    let mut table = LockTable::new();
    table.apply(1, &batch).unwrap();
    assert_eq!(table, restored(include_bytes!("compat/before-identities.snapshot")));
}
