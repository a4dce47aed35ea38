//! The bound on the total size of the table (S11): at the bound nothing new is accepted, commands that free something still
//! work, and the tracked size is always right. The histories of the model check it after every entry too
//! (`check_invariants`).

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::limits::{STATE_BYTES_MAX, STATE_BYTES_SETTING_MIN};
use lockkeeper_core::{
    AccessChange, Acquire, Answer, Batch, CellTime, Command, LockTable, Locks, Refusal, Reply, Restore,
    SessionId, TakeRate, Token, Wait,
};

const ANNA: SessionId = SessionId(1);
const BERT: SessionId = SessionId(2);

fn run(table: &mut LockTable, command: Command) -> Answer {
    let next = table.applied() + 1;
    let batch = Batch { now: CellTime(next * 1_000), utc_ms: 0, commands: vec![command] };
    let answer = table.apply(next, &batch).unwrap().answers.remove(0);
    assert_eq!(table.state_bytes(), table.count_state_bytes(), "the tracked size is right");
    answer
}

fn open(session: SessionId, owner: &str) -> Command {
    Command::OpenSession { session, ttl_ms: 10_000, owner: owner.into(), identity: Some("ci".into()) }
}

fn acquire(session: SessionId, lock: &str, request: &str, wait: Wait) -> Command {
    let request = Some(request.into());
    Command::Acquire(Acquire { request, wait, ..Acquire::new(session, Locks::One(lock.into())) })
}

fn put(key: &str, bytes: usize) -> Command {
    Command::PutValue { key: key.into(), value: vec![1; bytes].into(), fence: None, if_version: None }
}

fn set_bound(bytes: Option<u64>) -> Command {
    Command::ChangeAccess { by: "ada".into(), change: AccessChange::SetStateBytes { bytes } }
}

fn is_limit(answer: &Answer) -> bool {
    matches!(answer, Err(Refusal::Limit(why)) if why.contains("bytes of state"))
}

/// A table with a bound of 1 MiB, full of values. Both sessions hold a lock, and Bert waits for Anna's.
fn full_table() -> LockTable {
    let mut table = LockTable::new();
    assert_eq!(table.state_bytes_max(), STATE_BYTES_MAX);
    run(&mut table, open(ANNA, "anna")).unwrap();
    run(&mut table, open(BERT, "bert")).unwrap();
    run(&mut table, set_bound(Some(STATE_BYTES_SETTING_MIN))).unwrap();
    run(&mut table, acquire(ANNA, "a", "r1", Wait::No)).unwrap();
    run(&mut table, acquire(BERT, "b", "r1", Wait::No)).unwrap();
    run(&mut table, acquire(BERT, "a", "r2", Wait::Forever)).unwrap();
    for bytes in [50_000, 1_000, 10] {
        let mut number = 0;
        while run(&mut table, put(&format!("{bytes}/{number}"), bytes)).is_ok() {
            number += 1;
        }
    }
    assert!(table.state_bytes() <= table.state_bytes_max());
    table
}

fn restored(table: &LockTable) -> LockTable {
    let mut restore = Restore::new();
    table.snapshot().for_each(|chunk| restore.push(&chunk).unwrap());
    restore.finish().unwrap()
}

#[test]
fn full_table_accepts_nothing_new() {
    let mut table = full_table();
    let rate = TakeRate { limiter: "r".repeat(100).into(), permits: 1, interval_ns: 1_000, burst: 1 };
    for new in [
        open(SessionId(3), &"c".repeat(100)),
        acquire(ANNA, "c", "r9", Wait::No),
        acquire(ANNA, "b", "r10", Wait::Forever),
        put("new", 100),
        put("50000/0", 50_200),
        Command::TakeRate(rate),
    ] {
        let answer = run(&mut table, new.clone());
        assert!(is_limit(&answer), "{new:?}: {answer:?}");
    }
}

#[test]
fn full_table_answers_retries_and_accepts_whatever_frees() {
    let mut table = full_table();
    let again = run(&mut table, acquire(ANNA, "a", "r1", Wait::No));
    assert!(matches!(again, Ok(Reply::Granted(_))), "{again:?}");
    run(&mut table, put("50000/0", 50_000)).expect("a value of the same size");
    run(&mut table, put("50000/0", 10)).expect("a smaller value");
    let release = |session, lock: &str, token| Command::Release {
        session,
        lock: lock.into(),
        token: Token(token),
        forget: false,
    };
    run(&mut table, release(ANNA, "a", 1)).expect("a release admits the next request");
    assert!(table.holds(&"a".into(), Token(3)));
    let force = Command::ForceRelease { lock: "a".into(), reason: "it hangs".into(), by: "ada".into() };
    run(&mut table, force).expect("a force-release");
    let delete = |key: &str| Command::DeleteValue { key: key.into(), fence: None, if_version: None };
    run(&mut table, delete("50000/1")).expect("a deletion");
    run(&mut table, Command::CloseSession { session: BERT }).expect("a close");
    run(&mut table, acquire(ANNA, "c", "r9", Wait::No)).expect("there is room again");
}

#[test]
fn refused_requests_barely_grow_a_full_table() {
    let mut table = full_table();
    let before = table.state_bytes();
    for number in 0..2_000 {
        let request = format!("poll-{number}");
        let answer = run(&mut table, acquire(ANNA, "b", &request, Wait::No));
        assert!(is_limit(&answer), "{answer:?}");
    }
    let grown = table.state_bytes() - before;
    assert!(grown < 4_096 + 200 * 2, "{grown} bytes more");
}

/// In a full table a new answer evicts old ones of its size. The last 16 of a session stay; a session with fewer keeps
/// their number (S5).
#[test]
fn full_table_remembers_the_last_answers_of_each_session() {
    let mut table = full_table();
    run(&mut table, set_bound(Some(2 << 20))).unwrap();
    let poll = |who, number: usize| acquire(who, "b", &format!("poll-{number:06}"), Wait::No);
    for number in 0..200 {
        assert!(matches!(run(&mut table, poll(ANNA, number)), Err(Refusal::Busy { .. })));
    }
    let open = |table: &mut LockTable| run(table, open(SessionId(3), "cora"));
    open(&mut table).unwrap();
    for number in 0..5 {
        assert!(matches!(run(&mut table, poll(SessionId(3), number)), Err(Refusal::Busy { .. })));
    }
    run(&mut table, set_bound(Some(STATE_BYTES_SETTING_MIN))).unwrap();
    let full = table.state_bytes();
    for number in 200..600 {
        assert!(is_limit(&run(&mut table, poll(ANNA, number))));
    }
    assert!(table.state_bytes() < full, "{} bytes, {full} before", table.state_bytes());
    for number in 5..60 {
        assert!(is_limit(&run(&mut table, poll(SessionId(3), number))));
    }
    // There is room again, and the lock is free: requests that are not remembered are granted now.
    run(&mut table, set_bound(None)).unwrap();
    let force = Command::ForceRelease { lock: "b".into(), reason: "".into(), by: "".into() };
    run(&mut table, force).unwrap();
    let remembered = |session, numbers: std::ops::Range<usize>| {
        let is_remembered = |number: &usize| run(&mut table.clone(), poll(session, *number)).is_err();
        numbers.filter(is_remembered).collect::<Vec<_>>()
    };
    assert_eq!(remembered(ANNA, 0..600), (584..600).collect::<Vec<_>>());
    assert_eq!(remembered(SessionId(3), 0..60), (58..60).collect::<Vec<_>>());
}

#[test]
fn bound_is_replicated_and_can_be_changed() {
    let mut table = full_table();
    let copy = restored(&table);
    assert_eq!(copy, table);
    assert_eq!(copy.state_bytes(), table.state_bytes());
    assert_eq!((copy.state_bytes(), copy.state_bytes_max()), (copy.count_state_bytes(), 1 << 20));
    assert!(matches!(run(&mut table, set_bound(Some(1))), Err(Refusal::Invalid(_))), "too small");
    run(&mut table, set_bound(Some(2 << 20))).unwrap();
    run(&mut table, put("new", 1_000)).expect("there is room");
    run(&mut table, set_bound(Some(1 << 20))).unwrap();
    assert!(is_limit(&run(&mut table, put("newer", 1_000))), "above the bound, it does not grow");
    run(&mut table, set_bound(None)).unwrap();
    assert_eq!(table.state_bytes_max(), STATE_BYTES_MAX);
}
