//! A hand-over to a named candidate: the candidate holds the lock when the leader is answered, or nothing changes.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::limits::CANDIDATES_EXAMINED_MAX;
use lockkeeper_core::{
    Acquire, Answer, Batch, CellTime, Command, LockTable, Locks, Mode, Refusal, Reply, SessionId, Token, Wait,
};

const LOCK: &str = "election/db";

fn apply(table: &mut LockTable, command: Command) -> Answer {
    let batch = Batch { now: CellTime(0), utc_ms: 0, commands: vec![command] };
    let answer = table.apply(table.applied() + 1, &batch).unwrap().answers.remove(0);
    table.check_invariants().unwrap();
    answer
}

fn open(session: u128) -> Command {
    let owner = format!("owner-{session}").into();
    Command::OpenSession { session: SessionId(session), ttl_ms: 10_000, owner, identity: None }
}

fn campaign(session: u128, value: &str) -> Acquire {
    let value = Some(value.into());
    Acquire { wait: Wait::Forever, value, ..Acquire::new(SessionId(session), Locks::One(LOCK.into())) }
}

fn hand_over(token: Token, to: &str) -> Command {
    Command::HandOver { session: SessionId(1), lock: LOCK.into(), token, to: to.into() }
}

/// An election led by session 1, with this many candidates. Their sessions and values have numbers from 2.
fn election(candidates: u128) -> LockTable {
    let mut table = LockTable::new();
    for session in 1..=candidates + 1 {
        apply(&mut table, open(session)).unwrap();
        apply(&mut table, Command::Acquire(campaign(session, &format!("value-{session}")))).unwrap();
    }
    table
}

fn leader(table: &LockTable) -> Option<SessionId> {
    table.leader_of(&LOCK.into()).map(|leader| leader.session)
}

#[test]
fn candidate_is_found_by_its_value_at_any_place_and_by_its_owner_among_the_first() {
    let last = CANDIDATES_EXAMINED_MAX as u128 + 10;
    let table = election(last);
    for session in [2, 50, last + 1] {
        let mut table = table.clone();
        apply(&mut table, hand_over(Token(1), &format!("value-{session}"))).unwrap();
        assert_eq!(leader(&table), Some(SessionId(session)));
    }
    for session in [2, 50] {
        let mut table = table.clone();
        apply(&mut table, hand_over(Token(1), &format!("owner-{session}"))).unwrap();
        assert_eq!(leader(&table), Some(SessionId(session)));
    }
    let mut table = table;
    let too_far = apply(&mut table, hand_over(Token(1), &format!("owner-{}", last + 1)));
    assert!(matches!(too_far, Err(Refusal::Limit(_))), "{too_far:?}");
    assert_eq!(leader(&table), Some(SessionId(1)));
}

/// A value goes before an owner, and the first candidate with a value before later ones.
#[test]
fn first_candidate_with_the_value_leads() {
    let mut table = election(1);
    for session in [3, 4] {
        apply(&mut table, open(session)).unwrap();
        apply(&mut table, Command::Acquire(campaign(session, "owner-2"))).unwrap();
    }
    apply(&mut table, hand_over(Token(1), "owner-2")).unwrap();
    assert_eq!(leader(&table), Some(SessionId(3)));
}

#[test]
fn candidate_that_left_is_not_found() {
    let mut table = election(2);
    apply(&mut table, Command::CloseSession { session: SessionId(3) }).unwrap();
    let gone = apply(&mut table, hand_over(Token(1), "value-3"));
    assert!(matches!(gone, Err(Refusal::Invalid(_))), "{gone:?}");
}

/// Hands over while a second holder blocks the candidate. Returns the answer and whether the table changed.
fn hand_over_blocked() -> (Answer, bool) {
    let mut table = LockTable::new();
    (1..=3).for_each(|session| drop(apply(&mut table, open(session))));
    for session in [1, 2] {
        let share = Acquire { mode: Mode::Shared, ..campaign(session, "") };
        apply(&mut table, Command::Acquire(share)).unwrap();
    }
    apply(&mut table, Command::Acquire(campaign(3, "next"))).unwrap();
    let view = |table: &LockTable| table.lock_view(&LOCK.into(), table.now(), 10);
    let before = view(&table);
    let answer = apply(&mut table, hand_over(Token(1), "next"));
    (answer, view(&table) != before)
}

#[test]
fn hand_over_to_a_blocked_candidate_changes_nothing() {
    let (answer, changed) = hand_over_blocked();
    assert!(matches!(answer, Err(Refusal::Invalid(_))), "{answer:?}");
    assert!(!changed);
}

/// Mutation test: the lock is freed, and the candidate waits on.
#[cfg(feature = "mutations")]
#[test]
fn hand_over_to_a_blocked_candidate_is_detected() {
    use lockkeeper_core::mutation::{self, Mutation};

    mutation::put_back(Some(Mutation::HandOverAnyway));
    let handed = hand_over_blocked();
    mutation::put_back(None);
    assert_eq!(handed, (Ok(Reply::Done), true));
}
