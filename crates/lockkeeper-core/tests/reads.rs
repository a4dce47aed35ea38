//! A read visits a bounded number of records, whatever the table holds (S11), because it runs on the serving thread. These
//! are the reads of the table, on the tables on which they would be most expensive. `lockkeeper-server/src/observe/tests.rs`
//! names every read of the contract, and does not compile while one is missing.

#![cfg(feature = "mutations")]
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::limits::{FREE_LOCKS_REMEMBERED_MAX, LOCKS_PER_REQUEST_MAX, RULES_PER_IDENTITY_MAX};
use lockkeeper_core::{
    AccessChange, Acquire, Batch, CellTime, Command, LockName, LockTable, Locks, Mode, Right, Rights,
    SessionId, Token, Wait, reads,
};

const FEW: u64 = 1_000;
const MANY: u64 = 10 * FEW;
/// Most records that a read may visit; free locks that it skips count in addition.
const RECORDS_MAX: u64 = 9_000;
/// Most sessions that the server examines for a page by owner.
const SESSIONS_EXAMINED: usize = 10_000;

fn table(commands: impl IntoIterator<Item = Command>) -> LockTable {
    let mut table = LockTable::new();
    let mut commands = commands.into_iter().peekable();
    while commands.peek().is_some() {
        let commands = commands.by_ref().take(4_096).collect();
        let batch = Batch { now: CellTime(table.applied()), utc_ms: 0, commands };
        let applied = table.apply(table.applied() + 1, &batch).unwrap();
        assert!(
            applied.answers.iter().all(Result::is_ok),
            "{:?}",
            applied.answers.iter().find(|it| it.is_err())
        );
    }
    assert!(!table.has_backlog());
    table
}

fn open(session: u64) -> Command {
    let session = SessionId(u128::from(session) << 64);
    Command::OpenSession { session, ttl_ms: 10_000, owner: "o".into(), identity: None }
}

fn acquire(session: u64, lock: &str) -> Acquire {
    Acquire::new(SessionId(u128::from(session) << 64), Locks::One(lock.into()))
}

fn take(session: u64, lock: &str) -> Command {
    Command::Acquire(acquire(session, lock))
}

fn share(session: u64, lock: &str) -> Command {
    Command::Acquire(Acquire { mode: Mode::Shared, ..acquire(session, lock) })
}

fn wait(session: u64, lock: &str) -> Command {
    Command::Acquire(Acquire { wait: Wait::Forever, ..acquire(session, lock) })
}

fn name(number: u64) -> String {
    format!("lock-{number:06}")
}

/// Reads from a table with `FEW` of something, and from one with ten times as many. Neither read visits more than
/// `records_max` records.
#[track_caller]
fn assert_bounded(records_max: u64, build: impl Fn(u64) -> Vec<Command>, read: impl Fn(&LockTable)) {
    let records = [FEW, MANY].map(|count| {
        let table = table(build(count));
        reads::take();
        read(&table);
        reads::take()
    });
    assert!(records[0] > 0, "nothing was counted");
    assert!(records[1] <= records_max, "{records:?} records; at most {records_max} are allowed");
    assert!(records[1] <= 12 * records[0], "{records:?} records for {FEW} and {MANY}");
}

fn numbers(count: u64) -> impl Iterator<Item = u64> {
    1..=count
}

/// Two sessions: one holds a lock for which the other waits `count` times.
fn queue(count: u64) -> Vec<Command> {
    let head = [open(1), open(2), take(1, "a")];
    head.into_iter().chain(numbers(count).map(|_| wait(2, "a"))).collect()
}

#[test]
fn read_of_one_lock_is_bounded() {
    assert_bounded(25, queue, |table| {
        let view = table.lock_view(&LockName::from("a"), table.now(), 10);
        assert_eq!((view.holders.len(), view.queue.len()), (1, 10));
    });
    let shared = |count| [open(1)].into_iter().chain(numbers(count).map(|_| share(1, "a"))).collect();
    assert_bounded(25, shared, |table| {
        assert_eq!(table.lock_view(&LockName::from("a"), table.now(), 10).holders.len(), 10);
    });
}

#[test]
fn leader_of_an_election_is_read_without_its_candidates() {
    let campaign = |count| {
        let candidate = |session, value: &str| {
            let value = Some(value.into());
            Command::Acquire(Acquire { wait: Wait::Forever, value, ..acquire(session, "election/a") })
        };
        let head = [open(1), open(2), candidate(1, "first")];
        head.into_iter().chain(numbers(count).map(|_| candidate(2, "next"))).collect()
    };
    assert_bounded(5, campaign, |table| {
        let lock = LockName::from("election/a");
        let leader = table.leader_of(&lock).unwrap();
        assert_eq!((leader.session, leader.token), (SessionId(1 << 64), Token(1)));
        assert_eq!((leader.value.as_str(), leader.owner.as_str()), ("first", "o"));
        assert_eq!(u64::from(table.waiting_for(&lock)), table.counts().waiting);
        let unknown = LockName::from("election/b");
        assert_eq!((table.leader_of(&unknown), table.waiting_for(&unknown)), (None, 0));
    });
}

#[test]
fn page_of_elections_is_bounded() {
    let elections = |count| {
        let campaign = |n| {
            let value = Some("v".into());
            Command::Acquire(Acquire { value, ..acquire(1, &format!("election/{}", name(n))) })
        };
        [open(1), take(1, "a"), take(1, "z")].into_iter().chain(numbers(count).map(campaign)).collect()
    };
    assert_bounded(40, elections, |table| {
        assert_eq!(table.lock_views("election/", "", table.now(), 1).take(10).count(), 10);
    });
}

#[test]
fn page_of_locks_is_bounded() {
    let held = |count| [open(1)].into_iter().chain(numbers(count).map(|n| take(1, &name(n)))).collect();
    assert_bounded(200, held, |table| {
        for after in ["", &name(FEW / 2), &name(FEW - 10)] {
            let page: Vec<_> = table.lock_views("lock-", after, table.now(), 3).take(10).collect();
            assert_eq!(page.len(), 10);
        }
    });
}

/// Free locks between those in use are skipped, and their number is bounded.
#[test]
fn page_of_locks_after_free_ones_is_bounded() {
    const ROUNDS: u64 = 2 * FREE_LOCKS_REMEMBERED_MAX as u64 / 3;
    let free = |count: u64| {
        let used = numbers(ROUNDS * count / FEW).flat_map(|n| {
            let release = Command::Release {
                session: SessionId(1 << 64),
                lock: name(n).into(),
                token: Token(n),
                forget: true,
            };
            [take(1, &name(n)), release]
        });
        [open(1)].into_iter().chain(used).chain([take(1, "z")]).collect()
    };
    assert_bounded(FREE_LOCKS_REMEMBERED_MAX as u64 + 10, free, |table| {
        let page: Vec<_> = table.lock_views("", "", table.now(), 3).take(10).collect();
        assert_eq!(page.len(), 1);
    });
}

#[test]
fn most_contended_locks_are_bounded() {
    let contended = |count| {
        let head = [open(1), open(2)];
        head.into_iter().chain(numbers(count).flat_map(|n| [take(1, &name(n)), wait(2, &name(n))])).collect()
    };
    assert_bounded(RECORDS_MAX, contended, |table| {
        let (found, sampled) = table.most_contended(table.now(), 10);
        assert_eq!((found.len(), sampled), (10, table.counts().locks == MANY));
    });
    assert_bounded(10, queue, |table| assert_eq!(table.most_contended(table.now(), 10).0[0].lock, "a"));
}

#[test]
fn longest_held_locks_are_bounded() {
    let holders = |count| numbers(count).flat_map(|n| [open(n), take(n, &name(n))]).collect();
    assert_bounded(RECORDS_MAX, holders, |table| {
        let (found, sampled) = table.longest_held(table.now(), 10);
        assert_eq!((found.len(), sampled), (10, table.counts().locks == MANY));
    });
    // Many sessions that hold nothing.
    let idle = |count| numbers(count).map(open).chain([take(count, "a")]).collect();
    assert_bounded(10, idle, |table| {
        let (found, sampled) = table.longest_held(table.now(), 10);
        assert_eq!((found.len(), sampled), (1, false));
    });
    let one = |count| [open(1)].into_iter().chain(numbers(count).map(|n| take(1, &name(n)))).collect();
    assert_bounded(50, one, |table| assert_eq!(table.longest_held(table.now(), 10).0[0].lock, name(1)));
}

#[test]
fn wait_graph_is_bounded() {
    assert_bounded(RECORDS_MAX, queue, |table| drop(table.wait_graph(None, table.now())));
    assert_bounded(RECORDS_MAX, queue, |table| drop(table.wait_graph(Some(&"a".into()), table.now())));
    // Each session waits for the next one.
    let chain = |count| {
        let held = numbers(count).flat_map(|n| [open(n), take(n, &name(n))]);
        held.chain(numbers(count - 1).map(|n| wait(n, &name(n + 1)))).collect()
    };
    assert_bounded(RECORDS_MAX, chain, |table| {
        let graph = table.wait_graph(Some(&name(2).into()), table.now());
        assert!(graph.longest_chain.len() > 900);
    });
    // Each session waits for many others.
    let dense = |count| {
        const SESSIONS: u64 = 50;
        let held = numbers(SESSIONS).flat_map(|n| [open(n), take(n, &name(n))]);
        let waits =
            numbers(count * 5).map(|n| wait(1 + n % SESSIONS, &name(1 + (n / SESSIONS + n) % SESSIONS)));
        held.chain(waits).collect()
    };
    assert_bounded(RECORDS_MAX, dense, |table| assert!(table.wait_graph(None, table.now()).sampled));
    // Requests for many locks at once, all held.
    let wide = |count: u64| {
        let names = || numbers(100).map(|n| LockName::from(name(n)));
        let all = || {
            Command::Acquire(Acquire { wait: Wait::Forever, locks: Locks::many(names()), ..acquire(1, "") })
        };
        let held = numbers(100).map(|n| take(1, &name(n)));
        [open(1)].into_iter().chain(held).chain(numbers(count / 10).map(|_| all())).collect()
    };
    assert_bounded(RECORDS_MAX, wide, |table| drop(table.wait_graph(None, table.now())));
}

#[test]
fn history_of_a_lock_is_bounded() {
    let used = |count| {
        let once = |n| {
            let lock = "a".into();
            let session = SessionId(1 << 64);
            [take(1, "a"), Command::Release { session, lock, token: Token(n), forget: true }]
        };
        [open(1)].into_iter().chain(numbers(count).flat_map(once)).collect()
    };
    assert_bounded(100, used, |table| assert_eq!(table.history(&"a".into()).count(), 32));
}

#[test]
fn page_of_sessions_is_bounded() {
    let opened = |count| numbers(count).map(open).collect();
    assert_bounded(10, opened, |table| assert_eq!(table.sessions_after(None).take(10).count(), 10));
}

#[test]
fn values_sessions_and_counts_are_read_at_once() {
    let used = |count| {
        let put = |n| Command::PutValue {
            key: name(n).into(),
            value: vec![1].into(),
            fence: None,
            if_version: None,
        };
        let sessions = numbers(count).map(open);
        sessions.chain(numbers(count).map(|n| take(n, &name(n)))).chain(numbers(count).map(put)).collect()
    };
    assert_bounded(1, used, |table| assert_eq!(table.value(&name(FEW)).unwrap().version, 1));
    assert_bounded(1, used, |table| assert_eq!(table.session(SessionId(1 << 64)).unwrap().grants(), 1));
    assert_bounded(1, used, |table| {
        let counts = table.counts();
        assert_eq!(
            (counts.sessions, counts.grants, counts.locks),
            (counts.values, counts.values, counts.values)
        );
    });
    // What a client that attaches to its session is told.
    assert_bounded(2, used, |table| assert_eq!(table.grants_of(SessionId(1 << 64)).count(), 1));
}

/// A page of the grants of a session with many of them.
#[test]
fn page_of_the_grants_of_a_session_is_bounded() {
    let held = |count| [open(1)].into_iter().chain(numbers(count).map(|n| take(1, &name(n)))).collect();
    assert_bounded(10, held, |table| assert_eq!(table.grants_of(SessionId(1 << 64)).take(10).count(), 10));
}

#[test]
fn page_of_the_sessions_of_an_owner_is_bounded() {
    let others = |count| numbers(count).map(open).collect();
    assert_bounded(SESSIONS_EXAMINED as u64, others, |table| {
        let examined = table.sessions_after(None).take(SESSIONS_EXAMINED);
        assert_eq!(examined.filter(|(_, session)| session.owner == "absent").count(), 0);
    });
}

fn change(change: AccessChange) -> Command {
    Command::ChangeAccess { by: "root".into(), change }
}

fn rule(identity: &str, prefix: &str) -> Command {
    let rights = Rights::of([Right::Acquire]);
    change(AccessChange::Grant { identity: identity.into(), prefix: prefix.into(), rights })
}

#[test]
fn check_of_a_token_is_bounded() {
    let tokens = |count| {
        let token = |n: u64| AccessChange::AddToken {
            id: format!("{n:x}").into(),
            identity: "ci".into(),
            salt: [1; 16],
            hash: [2; 32],
        };
        numbers(count).map(|n| change(token(n))).collect()
    };
    assert_bounded(1, tokens, |table| assert_eq!(table.access().token("a").unwrap().identity, "ci"));
    assert_bounded(10, tokens, |table| assert_eq!(table.access().tokens().take(10).count(), 10));
}

/// An identity with the most rules asks for the most locks: each check visits few rules.
#[test]
fn check_of_rights_on_many_locks_is_bounded() {
    let rules = |count: u64| {
        let own = numbers(RULES_PER_IDENTITY_MAX as u64).map(|n| rule("ci", &format!("team-{n}/")));
        let wildcard = numbers(RULES_PER_IDENTITY_MAX as u64).map(|n| rule("*", &format!("public-{n}/")));
        let others = numbers(count).map(|n| rule(&format!("other-{n}"), "team-1/"));
        own.chain(wildcard).chain(others.take(5_000)).collect()
    };
    let locks: Vec<String> = (1..=LOCKS_PER_REQUEST_MAX).map(|n| format!("team-{n}/reports/daily")).collect();
    let refused: Vec<String> = (1..=LOCKS_PER_REQUEST_MAX).map(|n| format!("private-{n}/reports")).collect();
    assert_bounded(6 * LOCKS_PER_REQUEST_MAX as u64, rules, |table| {
        let access = table.access();
        assert!(locks.iter().all(|lock| access.allows("ci", Right::Acquire, lock)));
        assert!(!refused.iter().any(|lock| access.allows("ci", Right::Acquire, lock)));
        assert!(access.has_rights("ci"));
    });
    assert_bounded(10, rules, |table| assert_eq!(table.access().rules().take(10).count(), 10));
}

#[test]
fn audit_trail_is_bounded() {
    let notes = |count| {
        numbers(count).map(|_| Command::AuditNote { by: "root".into(), text: "done".into() }).collect()
    };
    assert_bounded(1_000, notes, |table| assert_eq!(table.acts().count(), 1_000));
}

/// A copy of the table costs nothing. Its snapshot visits every record once, off the serving thread.
#[test]
fn snapshot_visits_every_record_once() {
    let held =
        |count| [open(1)].into_iter().chain(numbers(count).map(|n| take(1, &name(n)))).collect::<Vec<_>>();
    let visited = [FEW, MANY].map(|count| {
        let table = table(held(count));
        reads::take();
        let copy = table.clone();
        assert_eq!(reads::take(), 0);
        assert!(copy.snapshot().next().is_some());
        let first = reads::take();
        assert!(copy.snapshot().count() > 0);
        (first, reads::take())
    });
    assert!(visited[1].0 <= 12 * visited[0].0.max(1_000), "the first chunk: {visited:?}");
    assert!(visited[1].1 <= 12 * visited[0].1, "all: {visited:?}");
}
