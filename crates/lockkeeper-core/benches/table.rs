//! CPU time of the lock table: `cargo bench -p lockkeeper-core`.
//!
//! First criterion's figures for frequent operations, then single timings of rare operations that must not stall others:
//! the end of a large session, a snapshot, many waiters granted at once.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput, criterion_group};
use lockkeeper_core::{
    Acquire, Applied, Batch, CellTime, Command, LockName, LockTable, Locks, Mode, Reply, Restore, SessionId,
    Token, Wait, Waiting,
};

const NAMES: usize = 65_536;

/// CPU time of this thread, independent of other load on the machine.
struct CpuTime;

impl CpuTime {
    fn now() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(now).unwrap()
    }
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        CpuTime::now()
    }

    fn end(&self, began: Duration) -> Duration {
        CpuTime::now() - began
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn apply(table: &mut LockTable, commands: Vec<Command>) -> Applied {
    let now = CellTime(table.now().0 + 1);
    table.apply(table.applied() + 1, &Batch { now, utc_ms: 0, commands }).unwrap()
}

fn open(session: u128) -> Command {
    Command::OpenSession {
        session: SessionId(session),
        ttl_ms: 10_000,
        owner: "web-17/worker-3".into(),
        identity: None,
    }
}

fn acquire(session: u128, name: &LockName, wait: Wait) -> Acquire {
    Acquire { wait, ..Acquire::new(SessionId(session), Locks::One(name.clone())) }
}

fn with_request(number: u64, acquire: Acquire) -> Command {
    Command::Acquire(Acquire { request: Some(format!("{number:016x}").into()), ..acquire })
}

fn release(session: u128, name: &LockName, token: Token) -> Command {
    Command::Release { session: SessionId(session), lock: name.clone(), token, forget: false }
}

/// A session id, spread over the whole range like random ones.
fn spread(number: u64) -> u128 {
    u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
}

fn names(prefix: &str, count: usize) -> Vec<LockName> {
    (0..count).map(|number| format!("{prefix}/{number}").into()).collect()
}

fn table_with_sessions(count: u64) -> LockTable {
    let mut table = LockTable::new();
    for first in (0..count).step_by(256) {
        apply(&mut table, (first..count.min(first + 256)).map(|number| open(spread(number))).collect());
    }
    table
}

/// `locks` locks with request ids, held by a thousand sessions.
fn table_with_locks(locks: u64) -> LockTable {
    let mut table = table_with_sessions(1_000);
    for first in (0..locks).step_by(256) {
        let commands = (first..locks.min(first + 256)).map(|number| {
            let name = LockName::from(format!("orders/{number}"));
            with_request(number, acquire(spread(number % 1_000), &name, Wait::No))
        });
        apply(&mut table, commands.collect());
    }
    table
}

/// A held lock with `waiters` waiting requests.
fn table_with_queue(waiters: u64, mode: Mode) -> LockTable {
    let mut table = table_with_sessions(1_000);
    let name = LockName::from("busy");
    apply(&mut table, vec![Command::Acquire(acquire(spread(0), &name, Wait::No))]);
    for number in 0..waiters {
        let request = acquire(spread(number % 1_000), &name, Wait::ForMs(60_000 + number));
        apply(&mut table, vec![Command::Acquire(Acquire { mode, ..request })]);
    }
    table
}

fn pair(table: &mut LockTable, session: u128, name: &LockName) {
    let token = Token(table.last_token().0 + 1);
    let commands = vec![Command::Acquire(acquire(session, name, Wait::No)), release(session, name, token)];
    black_box(apply(table, commands));
}

fn pairs(criterion: &mut Criterion<CpuTime>) {
    let names = names("accounts", NAMES);
    let mut group = criterion.benchmark_group("acquire and release");
    let mut measure = |what: &str, table: LockTable, sessions: u64| {
        group.bench_function(what, |bencher| {
            let mut table = table.clone();
            let mut number = 0;
            bencher.iter(|| {
                number += 7;
                pair(&mut table, spread(number % sessions), &names[number as usize * 31 % NAMES]);
            });
        });
    };
    measure("nothing else held", table_with_sessions(1), 1);
    measure("1,000,000 locks held", table_with_locks(1_000_000), 1_000);
    measure("100,000 sessions", table_with_sessions(100_000), 100_000);
    group.bench_function("with request ids", |bencher| {
        let mut table = table_with_sessions(1_000);
        let mut number = 0;
        bencher.iter(|| {
            number += 7;
            let (session, name) = (spread(number % 1_000), &names[number as usize * 31 % NAMES]);
            let token = Token(table.last_token().0 + 1);
            let request = with_request(number, acquire(session, name, Wait::No));
            black_box(apply(&mut table, vec![request, release(session, name, token)]));
        });
    });
    group.finish();
}

fn queues(criterion: &mut Criterion<CpuTime>) {
    let name = LockName::from("busy");
    let mut group = criterion.benchmark_group("10,000 waiters of one lock");
    group.bench_function("wait and cancel", |bencher| {
        let mut table = table_with_queue(9_999, Mode::Exclusive);
        bencher.iter(|| {
            let request = acquire(spread(3), &name, Wait::ForMs(60_000));
            let applied = apply(&mut table, vec![Command::Acquire(request)]);
            let Ok(Reply::Queued { ticket }) = applied.answers[0] else { panic!("it waits") };
            let what = Waiting::Ticket(ticket);
            black_box(apply(&mut table, vec![Command::Cancel { session: SessionId(spread(3)), what }]));
        });
    });
    group.bench_function("hand over and wait again", |bencher| {
        let mut table = table_with_queue(9_999, Mode::Exclusive);
        bencher.iter(|| {
            let view = table.lock_view(&name, table.now(), 1);
            let (holder, token) = (view.holders[0].session, view.holders[0].token);
            let commands = vec![
                release(holder.0, &name, token),
                Command::Acquire(acquire(holder.0, &name, Wait::ForMs(60_000))),
            ];
            black_box(apply(&mut table, commands));
        });
    });
    group.finish();
}

/// A scope that holds a contended lock joins a queue and cancels: the search for a cycle runs in both directions, and must
/// not walk along the queue.
fn scopes(criterion: &mut Criterion<CpuTime>) {
    let mut group = criterion.benchmark_group("a scope joins a queue and cancels");
    let in_scope = |session: u128, scope: String, name: &LockName, wait: Wait| Acquire {
        scope: Some(scope.into()),
        ..acquire(session, name, wait)
    };
    let (busy, own) = (LockName::from("busy"), LockName::from("own"));
    for waiters in [1u64, 100, 9_999] {
        let mut table = table_with_sessions(1_000);
        apply(&mut table, vec![Command::Acquire(in_scope(spread(0), "holder".into(), &busy, Wait::No))]);
        for number in 0..waiters {
            let request = in_scope(spread(number % 1_000), format!("t{number}"), &busy, Wait::Forever);
            apply(&mut table, vec![Command::Acquire(request)]);
        }
        apply(&mut table, vec![Command::Acquire(in_scope(spread(1), "me".into(), &own, Wait::No))]);
        apply(&mut table, vec![Command::Acquire(in_scope(spread(2), "behind".into(), &own, Wait::Forever))]);
        group.bench_function(format!("{waiters} already waiting"), |bencher| {
            let mut table = table.clone();
            bencher.iter(|| {
                let joined = apply(
                    &mut table,
                    vec![Command::Acquire(in_scope(spread(1), "me".into(), &busy, Wait::Forever))],
                );
                let Ok(Reply::Queued { ticket }) = joined.answers[0] else { panic!("{joined:?}") };
                let leave = Command::Cancel { session: SessionId(spread(1)), what: Waiting::Ticket(ticket) };
                black_box(apply(&mut table, vec![leave]));
            });
        });
    }
    group.finish();
}

fn entries(criterion: &mut Criterion<CpuTime>) {
    let names = names("accounts", NAMES);
    let mut group = criterion.benchmark_group("an entry");
    group.throughput(Throughput::Elements(256));
    group.bench_function("128 acquires and 128 releases, 100,000 locks held", |bencher| {
        let mut table = table_with_locks(100_000);
        let mut number = 0;
        bencher.iter(|| {
            let mut commands = Vec::with_capacity(256);
            for token in table.last_token().0 + 1..=table.last_token().0 + 128 {
                number += 7;
                let (session, name) = (spread(number % 1_000), &names[number as usize * 31 % NAMES]);
                commands.push(Command::Acquire(acquire(session, name, Wait::No)));
                commands.push(release(session, name, Token(token)));
            }
            black_box(apply(&mut table, commands));
        });
    });
    group.finish();
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = CpuTime::now();
    let done = work();
    (CpuTime::now() - began, done)
}

/// The time of each entry of a scenario: the shortest of three runs. All runs do the same work, so longer times are
/// disturbances by other processes on the same core.
fn undisturbed(scenario: impl Fn() -> Vec<Duration>) -> Vec<Duration> {
    let mut shortest = scenario();
    for _ in 0..2 {
        shortest = shortest.into_iter().zip(scenario()).map(|(one, other)| one.min(other)).collect();
    }
    shortest
}

fn report(what: &str, entries: Vec<Duration>) {
    let (longest, all) = (entries.iter().max().unwrap(), entries.iter().sum::<Duration>());
    println!("{what}: {} entries, the longest {longest:.2?}, together {all:.2?}", entries.len());
}

/// Applies ticks until no work is due.
fn until_settled(table: &mut LockTable, first: Command) -> Vec<Duration> {
    let mut entries = vec![timed(|| apply(table, vec![first])).0];
    while table.next_wake().is_some_and(|due| due <= table.now()) {
        entries.push(timed(|| apply(table, vec![Command::Tick])).0);
    }
    entries
}

fn close(session: u128) -> Command {
    Command::CloseSession { session: SessionId(session) }
}

fn end_of_a_session() {
    let names = names("orders", 100_000);
    let end = |waited_for: bool| {
        let mut table = table_with_sessions(1_000);
        for (name, number) in names.iter().zip(0..) {
            apply(&mut table, vec![with_request(number, acquire(spread(1), name, Wait::No))]);
            if waited_for {
                apply(&mut table, vec![Command::Acquire(acquire(spread(2), name, Wait::Forever))]);
            }
        }
        until_settled(&mut table, close(spread(1)))
    };
    report("a session with 100,000 locks ends", undisturbed(|| end(false)));
    report("a session with 100,000 locks, each waited for, ends", undisturbed(|| end(true)));
    let in_one_queue = || {
        let mut table = table_with_sessions(2);
        let name = LockName::from("busy");
        apply(&mut table, vec![Command::Acquire(acquire(spread(0), &name, Wait::No))]);
        for _ in 0..10_000 {
            apply(&mut table, vec![Command::Acquire(acquire(spread(1), &name, Wait::Forever))]);
        }
        until_settled(&mut table, close(spread(1)))
    };
    report("a session with 10,000 waits in one queue ends", undisturbed(in_one_queue));
}

fn many_waiters_are_granted() {
    let granted = || {
        let mut table = table_with_queue(10_000, Mode::Shared);
        until_settled(&mut table, release(spread(0), &LockName::from("busy"), Token(1)))
    };
    report("10,000 readers are granted", undisturbed(granted));
    let ends = || {
        let mut table = table_with_queue(10_000, Mode::Exclusive);
        let batch = Batch { now: table.now().plus_ms(1_000_000), utc_ms: 0, commands: vec![Command::Tick] };
        let (first, _) = timed(|| table.apply(table.applied() + 1, &batch).unwrap());
        let mut entries = until_settled(&mut table, Command::Tick);
        entries.insert(0, first);
        entries
    };
    report("10,000 waits end at the same time", undisturbed(ends));
}

fn snapshots() {
    let table = table_with_locks(1_000_000);
    let (took, copy) = timed(|| table.clone());
    println!("1,000,000 locks: a clone takes {took:.2?}");

    let names = names("accounts", 10_000);
    let all_pairs = |table: &mut LockTable| {
        let pairs = names.iter().zip(0..);
        pairs.map(|(name, number)| timed(|| pair(table, spread(number % 1_000), name)).0).collect()
    };
    // While a copy exists, the first change of every tree node copies that node.
    report("  10,000 pairs after a clone", undisturbed(|| all_pairs(&mut table.clone())));
    let later = undisturbed(|| {
        let mut alone = table.clone();
        let _: Vec<Duration> = all_pairs(&mut alone);
        all_pairs(&mut alone)
    });
    report("  10,000 more pairs", later);

    let (took, chunks) = timed(|| copy.snapshot().collect::<Vec<_>>());
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    println!("  snapshot: {took:.2?}, {} MB in {} chunks", bytes / 1_000_000, chunks.len());
    let (took, restored) = timed(|| {
        let mut restore = Restore::new();
        chunks.iter().for_each(|chunk| restore.push(chunk).unwrap());
        restore.finish().unwrap()
    });
    assert!(restored == table, "the same table");
    println!("  restore: {took:.2?}");
    let (took, ()) = timed(|| drop(restored));
    println!("  drop: {took:.2?}");
}

fn several_at_once() {
    let names = names("several", 128);
    let locks = Locks::many(names.iter().cloned());
    let mut table = table_with_sessions(1);
    let (mut acquired, mut released) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..100 {
        let request = Command::Acquire(Acquire::new(SessionId(spread(0)), locks.clone()));
        acquired += timed(|| apply(&mut table, vec![request])).0;
        let token = table.last_token();
        let all = names.iter().map(|name| release(spread(0), name, token)).collect();
        released += timed(|| apply(&mut table, all)).0;
    }
    println!("128 locks at once: acquired in {:.2?}, released in {:.2?}", acquired / 100, released / 100);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30);
    targets = pairs, queues, scopes, entries
}

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    // `cargo test --benches` and `--list` skip the single timings.
    if std::env::args().any(|argument| argument == "--bench") {
        several_at_once();
        end_of_a_session();
        many_waiters_are_granted();
        snapshots();
    }
}
