//! Everything is bounded (S11): at each bound the answer is a clear `limit`, what frees still works, and after it there is
//! room again. The bounds are small here; those of a cell take gigabytes to reach.

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

struct Stage {
    table: LockTable,
    index: u64,
    effects: Vec<Effect>,
}

impl Stage {
    /// With sessions 1 to 4.
    fn new() -> Stage {
        bounds::set(SMALL);
        let mut stage = Stage { table: LockTable::new(), index: 0, effects: Vec::new() };
        (1..=4).for_each(|session| drop(stage.open(session).unwrap()));
        stage
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

impl Drop for Stage {
    fn drop(&mut self) {
        bounds::set(Bounds::REAL);
    }
}

#[track_caller]
fn at_the_bound(answer: Answer, words: &str) {
    match answer {
        Err(Refusal::Limit(text)) => assert!(text.contains(words), "{text}"),
        other => panic!("no limit: {other:?}"),
    }
}

#[test]
fn sessions() {
    let mut stage = Stage::new();
    stage.open(5).unwrap();
    at_the_bound(stage.open(6), "the cell has 5 sessions, its limit");
    let token = stage.take(1, "a");
    stage.release(1, "a", token);
    stage.run(Command::CloseSession { session: SessionId(5) }).unwrap();
    stage.open(6).unwrap();
}

#[test]
fn locks_of_the_cell() {
    let mut stage = Stage::new();
    let first = stage.take(1, "lock-0");
    for number in 1..12 {
        stage.take(1 + number % 3, &format!("lock-{number}"));
    }
    at_the_bound(stage.acquire(4, "one-more", Wait::No), "the cell has 12 locks in use, its limit");
    at_the_bound(stage.acquire(4, "one-more", Wait::Forever), "the cell has 12 locks in use, its limit");
    stage.release(1, "lock-0", first);
    stage.take(4, "one-more");
}

#[test]
fn grants_of_a_session() {
    let mut stage = Stage::new();
    let first = stage.take(1, "lock-0");
    for number in 1..6 {
        stage.take(1, &format!("lock-{number}"));
    }
    at_the_bound(stage.acquire(1, "one-more", Wait::No), "the session holds 6 locks, its limit");
    stage.take(2, "another-session-has-room");
    stage.release(1, "lock-0", first);
    stage.take(1, "one-more");
}

#[test]
fn waits_of_a_session() {
    let mut stage = Stage::new();
    let first = stage.take(1, "lock-0");
    stage.take(1, "lock-1");
    stage.take(1, "lock-2");
    (0..7).for_each(|number| stage.queue(2, &format!("lock-{}", number % 3)));
    at_the_bound(
        stage.acquire(2, "lock-2", Wait::Forever),
        "7 requests of this session wait already, its limit",
    );
    stage.take(2, "free");
    stage.release(1, "lock-0", first);
    assert!(
        matches!(stage.effects[..], [Effect::Freed { .. }, Effect::Granted { .. }]),
        "{:?}",
        stage.effects
    );
    stage.queue(2, "lock-2");
}

#[test]
fn waiters_of_a_lock() {
    let mut stage = Stage::new();
    let first = stage.take(1, "lock");
    (0..3).for_each(|_| stage.queue(2, "lock"));
    at_the_bound(stage.acquire(3, "lock", Wait::Forever), "3 requests wait for \"lock\" already, its limit");
    assert!(matches!(stage.acquire(3, "lock", Wait::No), Err(Refusal::Busy { .. })), "a try is no wait");
    stage.release(1, "lock", first);
    stage.queue(3, "lock");
}

#[test]
fn values() {
    let mut stage = Stage::new();
    (0..4).for_each(|number| drop(stage.put(&format!("k{number}")).unwrap()));
    at_the_bound(stage.put("k4"), "the cell has 4 values, its limit");
    stage.put("k0").expect("what is there can be changed");
    stage.run(Command::DeleteValue { key: "k1".into(), fence: None, if_version: None }).unwrap();
    stage.put("k4").unwrap();
}

/// Tokens stay below 2^53 (S1). Whoever waits has been promised one.
#[test]
fn tokens() {
    let mut stage = Stage::new();
    stage.table.raise_to_floor(Token(Token::MAX.0 - 3)).unwrap();
    let no_token_above = stage.table.raise_to_floor(Token::MAX);
    assert!(matches!(no_token_above, Err(Refusal::Limit(_))), "a restore is refused too");
    let held = stage.take(1, "a");
    assert_eq!(held.0, Token::MAX.0 - 2);
    stage.queue(2, "a");
    let last_but_one = stage.take(1, "b");
    let all_given = "has given its tokens up to 9007199254740991, its limit";
    at_the_bound(stage.acquire(3, "c", Wait::No), all_given);
    at_the_bound(stage.acquire(3, "a", Wait::Forever), all_given);
    let force = Command::ForceRelease { lock: "b".into(), reason: "stuck".into(), by: "".into() };
    at_the_bound(stage.run(force), all_given);
    stage.release(1, "a", held);
    let granted = stage.effects.iter().find_map(|effect| match effect {
        Effect::Granted { grant, .. } => Some(grant.token),
        _ => None,
    });
    assert_eq!(granted, Some(Token::MAX), "the one that waited is let in");
    stage.release(1, "b", last_but_one);
    stage.release(2, "a", Token::MAX);
    at_the_bound(stage.acquire(3, "c", Wait::No), all_given);
}

#[test]
fn the_real_ones_are_those_of_the_documentation() {
    assert_eq!(bounds::bounds(), Bounds::REAL);
}

/// The answers to a request at a bound, and to its late copy when there is room again.
fn refused_and_repeated(bug: Option<Mutation>, request: Acquire) -> (Answer, Answer) {
    let mut stage = Stage::new();
    mutation::put_back(bug);
    let token = stage.take(1, "lock-0");
    for number in 1..6 {
        stage.take(1, &format!("lock-{number}"));
    }
    let refused = stage.run(Command::Acquire(request.clone()));
    stage.release(1, "lock-0", token);
    let repeated = stage.run(Command::Acquire(request));
    mutation::put_back(None);
    (refused, repeated)
}

/// A late copy of a refused request is not granted: its caller has gone on (S5).
#[test]
fn a_refusal_at_a_bound_is_remembered() {
    let request =
        Acquire { request: Some("r".into()), ..Acquire::new(SessionId(1), Locks::One("one-more".into())) };
    let (refused, repeated) = refused_and_repeated(None, request.clone());
    at_the_bound(refused.clone(), "the session holds 6 locks, its limit");
    assert_eq!(repeated, refused);
    let (_, repeated) = refused_and_repeated(Some(Mutation::ForgetRefusals), request.clone());
    assert!(matches!(repeated, Ok(Reply::Granted(_))), "with the bug it is granted to nobody: {repeated:?}");
    let malformed = Acquire { permits: Some(0), ..request };
    let (refused, repeated) = refused_and_repeated(None, malformed);
    assert!(matches!(refused, Err(Refusal::Limit(_))) && repeated == refused, "{refused:?} {repeated:?}");
}

/// The same for a request that is invalid only because of the state of its lock.
#[test]
fn an_invalid_request_stays_invalid() {
    let late_copy = |bug| {
        let mut stage = Stage::new();
        mutation::put_back(bug);
        let counted = |capacity| Acquire {
            request: Some("r".into()),
            capacity: Some(capacity),
            permits: Some(1),
            ..Acquire::new(SessionId(1), Locks::One("pool".into()))
        };
        let Ok(Reply::Granted(first)) = stage.run(Command::Acquire(Acquire { request: None, ..counted(2) }))
        else {
            panic!("not granted")
        };
        let refused = stage.run(Command::Acquire(counted(3)));
        stage.release(1, "pool", first.token);
        let repeated = stage.run(Command::Acquire(counted(3)));
        mutation::put_back(None);
        (refused, repeated)
    };
    let (refused, repeated) = late_copy(None);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    assert_eq!(repeated, refused);
    let (_, repeated) = late_copy(Some(Mutation::ForgetRefusals));
    assert!(matches!(repeated, Ok(Reply::Granted(_))), "with the bug it is granted to nobody: {repeated:?}");
}
