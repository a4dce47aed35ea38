//! For every command: ten times as many cost at most twelve times as much, by step counts, with everything that they
//! leave behind for later entries. What is not counted by steps costs a fixed number of tree operations.

#![allow(clippy::unwrap_used)]

use lockkeeper_core::{
    AccessChange, Acquire, Batch, CellTime, Command, LockTable, Locks, Mode, Policy, SessionId, TakeRate,
    Token, Wait, Waiting,
};

const FEW: u64 = 300;

#[derive(Default)]
struct Cell {
    table: LockTable,
    steps: u64,
}

impl Cell {
    fn run(&mut self, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            let batch = Batch { now: self.table.now(), utc_ms: 0, commands: vec![command] };
            self.apply(&batch);
        }
        while self.table.next_wake().is_some_and(|due| due <= self.table.now()) {
            self.apply(&Batch { now: self.table.now(), utc_ms: 0, commands: vec![Command::Tick] });
        }
    }

    fn apply(&mut self, batch: &Batch) {
        self.table.apply(self.table.applied() + 1, batch).unwrap();
        self.steps += self.table.steps();
    }

    fn wait_until(&mut self, now: CellTime) {
        self.apply(&Batch { now, utc_ms: 0, commands: vec![Command::Tick] });
        self.run([]);
    }
}

/// Compares the steps of `commands` after `before`, for some and for ten times as many.
#[track_caller]
fn linear(before: impl Fn(u64) -> Vec<Command>, commands: impl Fn(u64, &LockTable) -> Vec<Command>) {
    let steps = |count: u64| {
        let mut cell = Cell::default();
        cell.run((1..=2).map(open));
        cell.run(before(count));
        cell.steps = 0;
        let commands = commands(count, &cell.table);
        cell.run(commands);
        cell.steps
    };
    let (few, many) = (steps(FEW), steps(10 * FEW));
    assert!(few >= FEW / 2, "{few} steps: not counted");
    assert!(many <= 12 * few, "{few} steps for {FEW}, {many} for ten times as many");
}

fn each(count: u64, command: impl Fn(u64) -> Command) -> Vec<Command> {
    (0..count).map(command).collect()
}

fn open(session: u64) -> Command {
    let session = SessionId(session.into());
    Command::OpenSession { session, ttl_ms: 10_000, owner: "o".into(), identity: Some("ada".into()) }
}

fn acquire(session: u64, lock: impl Into<String>) -> Acquire {
    Acquire::new(SessionId(session.into()), Locks::One(lock.into().into()))
}

fn take(session: u64, lock: impl Into<String>) -> Command {
    Command::Acquire(acquire(session, lock))
}

fn wait(session: u64, lock: impl Into<String>) -> Command {
    Command::Acquire(Acquire { wait: Wait::Forever, ..acquire(session, lock) })
}

fn lock(number: u64) -> String {
    format!("lock-{number}")
}

fn release(session: u64, lock: impl Into<String>, token: u64) -> Command {
    let lock = lock.into().into();
    Command::Release { session: SessionId(session.into()), lock, token: Token(token), forget: false }
}

#[test]
fn sessions_open_close_and_expire() {
    linear(|_| vec![], |count, _| each(count, |number| open(10 + number)));
    let held = |count| {
        let opened = each(count, |number| open(10 + number));
        opened.into_iter().chain(each(count, |number| take(10 + number, lock(number)))).collect()
    };
    linear(held, |count, _| {
        each(count, |number| Command::CloseSession { session: SessionId(10 + u128::from(number)) })
    });
    linear(held, |count, table| {
        each(count, |number| {
            let session = SessionId(10 + u128::from(number));
            Command::ExpireSession { session, version: table.session(session).unwrap().version }
        })
    });
    // One session with everything.
    linear(
        |count| each(count, |number| take(1, lock(number))),
        |_, _| vec![Command::CloseSession { session: SessionId(1) }],
    );
    linear(
        |count| [take(2, "a")].into_iter().chain(each(count, |_| wait(1, "a"))).collect(),
        |_, _| vec![Command::CloseSession { session: SessionId(1) }],
    );
}

#[test]
fn locks_are_acquired_waited_for_and_released() {
    let none = |_| vec![];
    let held = |_| vec![take(1, "a")];
    let queue = |count| [take(1, "a")].into_iter().chain(each(count, |_| wait(2, "a"))).collect();
    linear(none, |count, _| each(count, |number| take(1, lock(number))));
    linear(held, |count, _| each(count, |_| take(2, "a")));
    linear(held, |count, _| each(count, |_| wait(2, "a")));
    // The same request again and again.
    let again = Acquire { request: Some("r".into()), wait: Wait::Forever, ..acquire(2, "a") };
    linear(held, |count, _| each(count, |_| Command::Acquire(again.clone())));
    // Each release lets the next one in.
    linear(queue, |count, _| each(count, |number| release(if number == 0 { 1 } else { 2 }, "a", number + 1)));
    // One release lets all in.
    let readers = |count| {
        let reader = || Acquire { wait: Wait::Forever, mode: Mode::Shared, ..acquire(2, "a") };
        [take(1, "a")].into_iter().chain(each(count, |_| Command::Acquire(reader()))).collect()
    };
    linear(readers, |_, _| vec![release(1, "a", 1)]);
    linear(queue, |count, _| {
        each(count, |number| Command::Cancel {
            session: SessionId(2),
            what: Waiting::Ticket(lockkeeper_core::Ticket(count - number)),
        })
    });
    // To the next candidate. One that only its owner names, or that stands far behind, costs a look at the whole queue, which
    // the step budget of the entry bounds.
    let candidates = |count| {
        let candidate = || Acquire { wait: Wait::Forever, value: Some("v".into()), ..acquire(2, "a") };
        [take(1, "a")].into_iter().chain(each(count, |_| Command::Acquire(candidate()))).collect()
    };
    linear(candidates, |count, _| {
        each(count, |number| Command::HandOver {
            session: SessionId(if number == 0 { 1 } else { 2 }),
            lock: "a".into(),
            token: Token(number + 1),
            to: "v".into(),
        })
    });
}

#[test]
fn locks_are_taken_by_force() {
    let force = |name: String| Command::ForceRelease { lock: name.into(), reason: "r".into(), by: "".into() };
    linear(
        |count| each(count, |number| take(1, lock(number))),
        |count, _| each(count, |number| force(lock(number))),
    );
    let sharers =
        |count| each(count, |_| Command::Acquire(Acquire { mode: Mode::Shared, ..acquire(1, "a") }));
    linear(sharers, |_, _| vec![force("a".to_owned())]);
}

#[test]
fn scopes_wait_and_wound() {
    for policy in [Policy::Detect, Policy::WaitDie, Policy::WoundWait] {
        let scoped = move |number: u64, name: String, wait| {
            let scope = Some(format!("scope-{number}").into());
            Command::Acquire(Acquire { scope, policy, wait, ..acquire(1, name) })
        };
        // Each scope holds a lock of its own and waits for that of the next one.
        linear(
            move |count| each(count, |number| scoped(number, lock(number), Wait::No)),
            move |count, _| each(count - 1, |number| scoped(number, lock(number + 1), Wait::Forever)),
        );
        // All of them wait for the same lock.
        linear(
            move |count| {
                [take(2, "a")]
                    .into_iter()
                    .chain(each(count, |number| scoped(number, lock(number), Wait::No)))
                    .collect()
            },
            move |count, _| each(count, |number| scoped(number, "a".to_owned(), Wait::Forever)),
        );
    }
}

#[test]
fn values_rates_and_rules() {
    let put = |number: u64| Command::PutValue {
        key: lock(number).into(),
        value: vec![1].into(),
        fence: None,
        if_version: None,
    };
    linear(|_| vec![], |count, _| each(count, put));
    linear(
        |count| each(count, put),
        |count, _| {
            each(count, |number| Command::DeleteValue {
                key: lock(number).into(),
                fence: None,
                if_version: None,
            })
        },
    );
    linear(
        |_| vec![],
        |count, _| {
            each(count, |number| {
                let limiter = lock(number).into();
                Command::TakeRate(TakeRate { limiter, permits: 1, interval_ns: 1_000, burst: 5 })
            })
        },
    );
    let token = |number: u64| AccessChange::AddToken {
        id: format!("{number:x}").into(),
        identity: "ci".into(),
        salt: [1; 16],
        hash: [2; 32],
    };
    linear(
        |_| vec![],
        |count, _| each(count, |number| Command::ChangeAccess { by: "root".into(), change: token(number) }),
    );
    linear(
        |_| vec![],
        |count, _| each(count, |_| Command::AuditNote { by: "root".into(), text: "done".into() }),
    );
}

/// Waits and lock-delays that end at the same moment.
#[test]
fn time_ends_waits_and_delays() {
    let waits = |count: u64| {
        let mut cell = Cell::default();
        cell.run((1..=2).map(open));
        cell.run([take(1, "a")]);
        let brief = || Acquire { wait: Wait::ForMs(1_000), ..acquire(2, "a") };
        cell.run(each(count, |_| Command::Acquire(brief())));
        cell.steps = 0;
        cell.wait_until(CellTime(1_000_000));
        assert_eq!(cell.table.counts().waiting, 0);
        cell.steps
    };
    let delays = |count: u64| {
        let mut cell = Cell::default();
        cell.run((1..=2).map(open));
        cell.run(each(count, |number| {
            Command::Acquire(Acquire { lock_delay_ms: 1_000, ..acquire(1, lock(number)) })
        }));
        let version = cell.table.session(SessionId(1)).unwrap().version;
        cell.run([Command::ExpireSession { session: SessionId(1), version }]);
        cell.steps = 0;
        cell.wait_until(CellTime(1_000_000));
        assert_eq!(cell.table.counts().locks, 0);
        cell.steps
    };
    assert!(waits(10 * FEW) <= 12 * waits(FEW));
    assert!(delays(10 * FEW) <= 12 * delays(FEW));
}
