//! Everything is bounded (S11): at each bound the answer is `limit`, commands that free something still work, and then
//! there is room again. These tests set small bounds, because the real ones take gigabytes to reach.

#![cfg(feature = "mutations")]
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::bounds::{self, Bounds};
use lockkeeper_core::mutation::{self, Mutation};
use lockkeeper_core::{
    Acquire, Answer, Batch, CellTime, Command, Effect, LockTable, Locks, Refusal, Reply, SessionId, Token,
    Wait,
};

const SMALL: Bounds = Bounds {
    sessions: 5,
    locks: 12,
    values: 4,
    grants_per_session: 6,
    waits_per_session: 7,
    waiters_per_lock: 3,
    ..Bounds::REAL
};

struct Fixture {
    table: LockTable,
    index: u64,
    effects: Vec<Effect>,
}

impl Fixture {
    /// With sessions 1 to 4.
    fn new() -> Fixture {
        bounds::set(SMALL);
        let mut fixture = Fixture { table: LockTable::new(), index: 0, effects: Vec::new() };
        (1..=4).for_each(|session| drop(fixture.open(session).unwrap()));
        fixture
    }

    fn run(&mut self, command: Command) -> Answer {
        self.index += 1;
        let batch = Batch { now: CellTime(self.index * 1_000), utc_ms: 0, commands: vec![command] };
        let mut applied = self.table.apply(self.index, &batch).unwrap();
        self.effects = applied.effects;
        applied.answers.remove(0)
    }

    fn open(&mut self, session: u128) -> Answer {
        self.run(Command::OpenSession {
            session: SessionId(session),
            ttl_ms: 1_000,
            owner: "test".into(),
            identity: None,
        })
    }

    fn acquire(&mut self, session: u128, lock: &str, wait: Wait) -> Answer {
        let request = Acquire::new(SessionId(session), Locks::One(lock.into()));
        self.run(Command::Acquire(Acquire { wait, ..request }))
    }

    fn take(&mut self, session: u128, lock: &str) -> Token {
        match self.acquire(session, lock, Wait::No) {
            Ok(Reply::Granted(grant)) => grant.token,
            other => panic!("{lock} for {session}: {other:?}"),
        }
    }

    fn queue(&mut self, session: u128, lock: &str) {
        let answer = self.acquire(session, lock, Wait::Forever);
        assert!(matches!(answer, Ok(Reply::Queued { .. })), "{lock} for {session}: {answer:?}");
    }

    fn release(&mut self, session: u128, lock: &str, token: Token) {
        let release =
            Command::Release { session: SessionId(session), lock: lock.into(), token, forget: false };
        assert_eq!(self.run(release), Ok(Reply::Done), "a release works at every bound");
    }

    fn put(&mut self, key: &str) -> Answer {
        self.run(Command::PutValue { key: key.into(), value: vec![1].into(), fence: None, if_version: None })
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        bounds::set(Bounds::REAL);
    }
}

#[track_caller]
fn assert_limit(answer: Answer, words: &str) {
    match answer {
        Err(Refusal::Limit(text)) => assert!(text.contains(words), "{text}"),
        other => panic!("expected a limit: {other:?}"),
    }
}

#[test]
fn sessions_are_bounded() {
    let mut fixture = Fixture::new();
    fixture.open(5).unwrap();
    assert_limit(fixture.open(6), "the cell has 5 sessions, its limit");
    let token = fixture.take(1, "a");
    fixture.release(1, "a", token);
    fixture.run(Command::CloseSession { session: SessionId(5) }).unwrap();
    fixture.open(6).unwrap();
}

#[test]
fn locks_of_a_cell_are_bounded() {
    let mut fixture = Fixture::new();
    let first = fixture.take(1, "lock-0");
    for number in 1..12 {
        fixture.take(1 + number % 3, &format!("lock-{number}"));
    }
    assert_limit(fixture.acquire(4, "one-more", Wait::No), "the cell has 12 locks in use, its limit");
    assert_limit(fixture.acquire(4, "one-more", Wait::Forever), "the cell has 12 locks in use, its limit");
    fixture.release(1, "lock-0", first);
    fixture.take(4, "one-more");
}

#[test]
fn grants_of_a_session_are_bounded() {
    let mut fixture = Fixture::new();
    let first = fixture.take(1, "lock-0");
    for number in 1..6 {
        fixture.take(1, &format!("lock-{number}"));
    }
    assert_limit(fixture.acquire(1, "one-more", Wait::No), "the session holds 6 locks, its limit");
    fixture.take(2, "another-session-has-room");
    fixture.release(1, "lock-0", first);
    fixture.take(1, "one-more");
}

#[test]
fn waits_of_a_session_are_bounded() {
    let mut fixture = Fixture::new();
    let first = fixture.take(1, "lock-0");
    fixture.take(1, "lock-1");
    fixture.take(1, "lock-2");
    (0..7).for_each(|number| fixture.queue(2, &format!("lock-{}", number % 3)));
    assert_limit(
        fixture.acquire(2, "lock-2", Wait::Forever),
        "this session already has 7 waiting requests, its limit",
    );
    fixture.take(2, "free");
    fixture.release(1, "lock-0", first);
    assert!(
        matches!(fixture.effects[..], [Effect::Freed { .. }, Effect::Granted { .. }]),
        "{:?}",
        fixture.effects
    );
    fixture.queue(2, "lock-2");
}

#[test]
fn waiters_of_a_lock_are_bounded() {
    let mut fixture = Fixture::new();
    let first = fixture.take(1, "lock");
    (0..3).for_each(|_| fixture.queue(2, "lock"));
    assert_limit(
        fixture.acquire(3, "lock", Wait::Forever),
        "3 requests already wait for \"lock\", its limit",
    );
    assert!(
        matches!(fixture.acquire(3, "lock", Wait::No), Err(Refusal::Busy { .. })),
        "a request without a wait is not bounded"
    );
    fixture.release(1, "lock", first);
    fixture.queue(3, "lock");
}

#[test]
fn values_are_bounded() {
    let mut fixture = Fixture::new();
    (0..4).for_each(|number| drop(fixture.put(&format!("k{number}")).unwrap()));
    assert_limit(fixture.put("k4"), "the cell has 4 values, its limit");
    fixture.put("k0").expect("an existing value can be changed");
    fixture.run(Command::DeleteValue { key: "k1".into(), fence: None, if_version: None }).unwrap();
    fixture.put("k4").unwrap();
}

/// Tokens stay below 2^53 (S1). One is reserved for each waiting request.
#[test]
fn tokens_are_bounded() {
    let mut fixture = Fixture::new();
    fixture.table.raise_to_floor(Token(Token::MAX.0 - 3)).unwrap();
    let no_token_above = fixture.table.raise_to_floor(Token::MAX);
    assert!(matches!(no_token_above, Err(Refusal::Limit(_))), "a restore is refused too");
    let held = fixture.take(1, "a");
    assert_eq!(held.0, Token::MAX.0 - 2);
    fixture.queue(2, "a");
    let last_but_one = fixture.take(1, "b");
    let all_issued = "has issued its tokens up to 9007199254740991, its limit";
    assert_limit(fixture.acquire(3, "c", Wait::No), all_issued);
    assert_limit(fixture.acquire(3, "a", Wait::Forever), all_issued);
    let force = Command::ForceRelease { lock: "b".into(), reason: "stuck".into(), by: "".into() };
    assert_limit(fixture.run(force), all_issued);
    fixture.release(1, "a", held);
    let granted = fixture.effects.iter().find_map(|effect| match effect {
        Effect::Granted { grant, .. } => Some(grant.token),
        _ => None,
    });
    assert_eq!(granted, Some(Token::MAX), "the waiting request is granted");
    fixture.release(1, "b", last_but_one);
    fixture.release(2, "a", Token::MAX);
    assert_limit(fixture.acquire(3, "c", Wait::No), all_issued);
}

#[test]
fn default_bounds_are_the_real_ones() {
    assert_eq!(bounds::bounds(), Bounds::REAL);
}

/// The answers to a request at a bound, and to a late copy of it when there is room again.
fn refused_and_repeated(bug: Option<Mutation>, request: Acquire) -> (Answer, Answer) {
    let mut fixture = Fixture::new();
    mutation::put_back(bug);
    let token = fixture.take(1, "lock-0");
    for number in 1..6 {
        fixture.take(1, &format!("lock-{number}"));
    }
    let refused = fixture.run(Command::Acquire(request.clone()));
    fixture.release(1, "lock-0", token);
    let repeated = fixture.run(Command::Acquire(request));
    mutation::put_back(None);
    (refused, repeated)
}

/// A late copy of a refused request is not granted: its caller has moved on (S5).
#[test]
fn refusal_at_a_bound_is_remembered() {
    let request =
        Acquire { request: Some("r".into()), ..Acquire::new(SessionId(1), Locks::One("one-more".into())) };
    let (refused, repeated) = refused_and_repeated(None, request.clone());
    assert_limit(refused.clone(), "the session holds 6 locks, its limit");
    assert_eq!(repeated, refused);
    let (_, repeated) = refused_and_repeated(Some(Mutation::ForgetRefusals), request.clone());
    assert!(matches!(repeated, Ok(Reply::Granted(_))), "the mutation grants the late copy: {repeated:?}");
    let malformed = Acquire { permits: Some(0), ..request };
    let (refused, repeated) = refused_and_repeated(None, malformed);
    assert!(matches!(refused, Err(Refusal::Limit(_))) && repeated == refused, "{refused:?} {repeated:?}");
}

/// The same for a request that is invalid only in the current state of its lock.
#[test]
fn refusal_of_an_invalid_request_is_remembered() {
    let late_copy = |bug| {
        let mut fixture = Fixture::new();
        mutation::put_back(bug);
        let counted = |capacity| Acquire {
            request: Some("r".into()),
            capacity: Some(capacity),
            permits: Some(1),
            ..Acquire::new(SessionId(1), Locks::One("pool".into()))
        };
        let Ok(Reply::Granted(first)) =
            fixture.run(Command::Acquire(Acquire { request: None, ..counted(2) }))
        else {
            panic!("not granted")
        };
        let refused = fixture.run(Command::Acquire(counted(3)));
        fixture.release(1, "pool", first.token);
        let repeated = fixture.run(Command::Acquire(counted(3)));
        mutation::put_back(None);
        (refused, repeated)
    };
    let (refused, repeated) = late_copy(None);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    assert_eq!(repeated, refused);
    let (_, repeated) = late_copy(Some(Mutation::ForgetRefusals));
    assert!(matches!(repeated, Ok(Reply::Granted(_))), "the mutation grants the late copy: {repeated:?}");
}
