//! A late copy of a refused acquire is refused again, whatever the reason was and even if it has gone since (S5).

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::{
    AccessChange, Acquire, Answer, Batch, CellTime, Command, LockTable, Locks, Quota, Refusal, Reply,
    SessionId, Token,
};

fn apply(table: &mut LockTable, command: Command) -> Answer {
    let batch = Batch { now: CellTime(0), utc_ms: 0, commands: vec![command] };
    table.apply(table.applied() + 1, &batch).unwrap().answers.remove(0)
}

fn acquire(session: u128, locks: &[&str], request: &str) -> Acquire {
    let locks = Locks::many(locks.iter().map(|name| (*name).into()));
    Acquire { request: Some(request.into()), ..Acquire::new(SessionId(session), locks) }
}

fn quota(locks: Option<u64>) -> Command {
    let quota = Quota { locks, ..Quota::default() };
    let change = AccessChange::SetQuota { namespace: "team".into(), quota };
    Command::ChangeAccess { by: "root".into(), change }
}

/// The answer to a refused acquire of session 2, and to its late copy after the reason has gone.
fn refused_and_copied(first: Acquire, blocked: Acquire, gone: Command) -> (Answer, Answer) {
    let mut table = LockTable::new();
    for session in [1, 2] {
        let session = SessionId(session);
        let open = Command::OpenSession { session, ttl_ms: 10_000, owner: "o".into(), identity: None };
        apply(&mut table, open).unwrap();
    }
    apply(&mut table, quota(Some(1))).unwrap();
    apply(&mut table, Command::Acquire(first)).unwrap();
    let refused = apply(&mut table, Command::Acquire(blocked.clone()));
    apply(&mut table, gone).unwrap();
    (refused, apply(&mut table, Command::Acquire(blocked)))
}

fn release(lock: &str) -> Command {
    Command::Release { session: SessionId(1), lock: lock.into(), token: Token(1), forget: true }
}

fn busy() -> (Answer, Answer) {
    refused_and_copied(acquire(1, &["a"], "r"), acquire(2, &["a"], "r"), release("a"))
}

/// A counted lock cannot be acquired together with others while it is in use.
fn invalid() -> (Answer, Answer) {
    let seats = Acquire { permits: Some(1), capacity: Some(4), ..acquire(1, &["seats"], "r") };
    refused_and_copied(seats, acquire(2, &["a", "seats"], "r"), release("seats"))
}

fn limit() -> (Answer, Answer) {
    refused_and_copied(acquire(1, &["team/a"], "r"), acquire(2, &["team/b"], "r"), quota(None))
}

#[test]
fn late_copies_are_refused_like_the_first() {
    for (refused, copied) in [busy(), invalid(), limit()] {
        assert!(refused.is_err() && copied == refused, "{refused:?}, then {copied:?}");
    }
    assert!(matches!(busy().0, Err(Refusal::Busy { .. })));
    assert!(matches!(invalid().0, Err(Refusal::Invalid(_))));
    assert!(matches!(limit().0, Err(Refusal::Limit(_))));
}

/// Mutation test: late copies are granted.
#[cfg(feature = "mutations")]
#[test]
fn granted_late_copies_are_detected() {
    use lockkeeper_core::mutation::{self, Mutation};

    let granted = |bug, run: fn() -> (Answer, Answer)| {
        mutation::put_back(Some(bug));
        let (_, copied) = run();
        mutation::put_back(None);
        matches!(copied, Ok(Reply::Granted(_)))
    };
    let by = |bug| [busy, invalid, limit].map(|run| granted(bug, run));
    assert_eq!(by(Mutation::ForgetRefusals), [true, true, true]);
    assert_eq!(by(Mutation::ForgetInvalid), [false, true, true]);
}
