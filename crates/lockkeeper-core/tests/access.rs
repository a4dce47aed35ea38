//! Identities, rules and quotas: ownership of sessions, usage counts, the audit trail, snapshots.

#![allow(clippy::unwrap_used)]

use lockkeeper_core::history::ActionKind;
use lockkeeper_core::{
    AccessChange, Acquire, Answer, Batch, CellTime, Command, LockTable, Locks, Quota, Refusal, Reply,
    Restore, Right, Rights, SessionId, Usage, Wait, Waiting,
};
use proptest::prelude::*;

fn run(table: &mut LockTable, command: Command) -> Answer {
    let batch = Batch { now: CellTime(table.now().0 + 1_000), utc_ms: 0, commands: vec![command] };
    table.apply(table.applied() + 1, &batch).unwrap().answers.remove(0)
}

fn open(by: &str, session: u128) -> Command {
    let (session, identity) = (SessionId(session), Some(by.into()));
    Command::OpenSession { session, ttl_ms: 10_000, owner: "o".into(), identity }
}

fn change(change: AccessChange) -> Command {
    Command::ChangeAccess { by: "root".into(), change }
}

fn quota(namespace: &str, quota: Quota) -> Command {
    change(AccessChange::SetQuota { namespace: namespace.into(), quota })
}

fn acquire(session: u128, locks: &[&str], wait: Wait, request: &str) -> Command {
    let locks = Locks::many(locks.iter().map(|name| (*name).into()));
    let request = Some(request.into());
    Command::Acquire(Acquire { wait, request, ..Acquire::new(SessionId(session), locks) })
}

fn restored(table: &LockTable) -> LockTable {
    let mut restore = Restore::new();
    for chunk in table.snapshot() {
        restore.push(&chunk).unwrap();
    }
    restore.finish().unwrap()
}

proptest! {
    /// The search by prefixes agrees with a check of every rule.
    #[test]
    fn rights_agree_with_a_check_of_every_rule(
        rules in proptest::collection::vec(("[a*]", "[abä/]{0,4}", 0..4_usize), 0..12),
        names in proptest::collection::vec("(election/)?[abä/]{0,6}", 1..8),
    ) {
        let mut table = LockTable::new();
        for (identity, prefix, right) in &rules {
            let rights = Rights::of([Right::ALL[*right]]);
            let grant = AccessChange::Grant { identity: identity.into(), prefix: prefix.into(), rights };
            run(&mut table, change(grant)).unwrap();
        }
        let access = table.access();
        for name in &names {
            let subject = name.strip_prefix("election/").unwrap_or(name);
            for (identity, right) in ["a", "b"].into_iter().flat_map(|who| Right::ALL.map(|right| (who, right))) {
                let fits = |(who, prefix, rights): (&smol_str::SmolStr, &smol_str::SmolStr, Rights)| {
                    let includes = rights.iter().any(|given| {
                        given == right || given == Right::Admin || right == Right::Read
                    });
                    (who == identity || who == "*") && subject.starts_with(prefix.as_str()) && includes
                };
                prop_assert_eq!(access.allows(identity, right, name), access.rules().any(fits), "{} {}", identity, name);
            }
        }
    }
}

#[test]
fn session_belongs_to_its_identity_also_after_a_restore() {
    let mut table = LockTable::new();
    run(&mut table, open("ada", 1)).unwrap();
    let plain =
        Command::OpenSession { session: SessionId(2), ttl_ms: 10_000, owner: "o".into(), identity: None };
    run(&mut table, plain).unwrap();
    for table in [&table, &restored(&table)] {
        assert!(table.belongs_to(SessionId(1), Some("ada")));
        assert!(!table.belongs_to(SessionId(1), Some("eve")));
        assert!(!table.belongs_to(SessionId(1), None));
        assert!(table.belongs_to(SessionId(2), None));
        assert!(!table.belongs_to(SessionId(2), Some("ada")));
        assert_eq!(table.access().sessions_of("ada"), 1);
    }
    assert_eq!(restored(&table), table);
    run(&mut table, Command::CloseSession { session: SessionId(1) }).unwrap();
    assert_eq!(table.access().sessions_of("ada"), 0);
}

#[test]
fn session_quota_of_an_identity_is_enforced() {
    let mut table = LockTable::new();
    run(&mut table, change(AccessChange::SetSessions { identity: "*".into(), sessions: Some(1) })).unwrap();
    run(&mut table, change(AccessChange::SetSessions { identity: "ada".into(), sessions: Some(2) })).unwrap();
    for session in 1..=2 {
        run(&mut table, open("ada", session)).unwrap();
    }
    assert!(matches!(run(&mut table, open("ada", 3)), Err(Refusal::Limit(_))));
    run(&mut table, open("bert", 4)).unwrap();
    assert!(matches!(run(&mut table, open("bert", 5)), Err(Refusal::Limit(_))));
    let version = table.session(SessionId(1)).unwrap().version;
    run(&mut table, Command::ExpireSession { session: SessionId(1), version }).unwrap();
    run(&mut table, open("ada", 6)).unwrap();
}

#[test]
fn audit_trail_names_callers_and_has_no_secrets() {
    let mut table = LockTable::new();
    let force = Command::ForceRelease { lock: "a".into(), reason: "stuck".into(), by: "ada".into() };
    assert!(matches!(run(&mut table, force), Ok(Reply::Forced { .. })));
    let token =
        AccessChange::AddToken { id: "0a".into(), identity: "ci".into(), salt: [1; 16], hash: [0xab; 32] };
    run(&mut table, change(token)).unwrap();
    let acts: Vec<_> = table.acts().map(|act| act.kind.clone()).collect();
    let ActionKind::Access { by, change } = &acts[0] else { panic!("{acts:?}") };
    assert_eq!((by.as_str(), change.as_str()), ("root", "token 0a made for ci"));
    assert!(
        matches!(&acts[1], ActionKind::ForceRelease { by, lock, .. } if by == "ada" && lock == "a"),
        "{acts:?}"
    );
    assert_eq!(restored(&table), table);
}

#[test]
fn snapshots_keep_rules() {
    let mut table = LockTable::new();
    let rights = Rights::of([Right::Acquire]);
    let grant = AccessChange::Grant { identity: "ci".into(), prefix: "builds/".into(), rights };
    run(&mut table, change(grant)).unwrap();
    run(&mut table, quota("builds", Quota { locks: Some(3), ..Quota::default() })).unwrap();
    let back = restored(&table);
    assert_eq!(back, table);
    assert!(back.access().allows("ci", Right::Acquire, "builds/1"));
    let revoke = AccessChange::Revoke { identity: "ci".into(), prefix: "builds/".into() };
    run(&mut table, change(revoke.clone())).unwrap();
    assert!(!table.access().allows("ci", Right::Acquire, "builds/1"));
    assert!(matches!(run(&mut table, change(revoke)), Err(Refusal::Invalid(_))));
}

#[derive(Debug, Clone)]
enum Step {
    Acquire { session: u128, locks: Vec<usize>, wait: bool },
    Release { session: u128, lock: usize },
    Cancel { session: u128, request: u64 },
    Close(u128),
    Force(usize),
    Put(usize),
    Delete(usize),
    Quota(Option<u64>),
}

const NAMES: [&str; 5] = ["a/1", "a/2", "b/1", "election/a/3", "c"];

fn step() -> impl Strategy<Value = Step> {
    let (session, lock) = (1..4u128, 0..NAMES.len());
    prop_oneof![
        6 => (session.clone(), prop::collection::vec(lock.clone(), 1..3), any::<bool>())
            .prop_map(|(session, locks, wait)| Step::Acquire { session, locks, wait }),
        4 => (session.clone(), lock.clone()).prop_map(|(session, lock)| Step::Release { session, lock }),
        1 => (session.clone(), 0..30u64).prop_map(|(session, request)| Step::Cancel { session, request }),
        1 => session.prop_map(Step::Close),
        1 => lock.clone().prop_map(Step::Force),
        2 => lock.clone().prop_map(Step::Put),
        1 => lock.prop_map(Step::Delete),
        1 => prop::option::of(1..4u64).prop_map(Step::Quota),
    ]
}

proptest! {
    /// Usage that is counted step by step equals the usage that a restored table recounts.
    #[test]
    fn usage_counts_are_right(steps in prop::collection::vec(step(), 1..60)) {
        let mut table = LockTable::new();
        let mut bound = Some(2);
        run(&mut table, quota("a", Quota { locks: bound, waiters: bound, ..Quota::default() })).unwrap();
        for session in 1..4 {
            run(&mut table, open("ada", session)).unwrap();
        }
        for (number, step) in steps.into_iter().enumerate() {
            let command = match step.clone() {
                Step::Acquire { session, locks, wait } => {
                    let names: Vec<&str> = locks.iter().map(|at| NAMES[*at]).collect();
                    let wait = if wait { Wait::Forever } else { Wait::No };
                    acquire(session, &names, wait, &number.to_string())
                }
                Step::Release { session, lock } => {
                    let token = table.last_token_of(&NAMES[lock].into());
                    let lock = NAMES[lock].into();
                    Command::Release { session: SessionId(session), lock, token, forget: true }
                }
                Step::Cancel { session, request } => {
                    let what = Waiting::Request(request.to_string().into());
                    Command::Cancel { session: SessionId(session), what }
                }
                Step::Close(session) => Command::CloseSession { session: SessionId(session) },
                Step::Force(lock) => {
                    Command::ForceRelease { lock: NAMES[lock].into(), reason: "r".into(), by: "ada".into() }
                }
                Step::Put(key) => {
                    Command::PutValue { key: NAMES[key].into(), value: vec![1].into(), fence: None, if_version: None }
                }
                Step::Delete(key) => {
                    Command::DeleteValue { key: NAMES[key].into(), fence: None, if_version: None }
                }
                Step::Quota(most) => {
                    bound = most;
                    quota("a", Quota { locks: most, waiters: most, ..Quota::default() })
                }
            };
            let before = table.access().usage_of("a");
            // A new quota does not remove what is in use.
            let is_quota = matches!(step, Step::Quota(_));
            let _ = run(&mut table, command);
            prop_assert_eq!(&restored(&table), &table);
            let after = table.access().usage_of("a");
            match bound {
                Some(_) if is_quota => {}
                Some(most) => {
                    prop_assert!(after.locks <= most.max(before.locks), "{:?} with {}", after, most);
                    prop_assert!(after.waiters <= most.max(before.waiters), "{:?} with {}", after, most);
                }
                None => prop_assert_eq!(after, Usage::default(), "nothing is counted"),
            }
        }
    }
}
