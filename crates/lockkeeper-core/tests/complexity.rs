//! Every command has linear cost: ten times as many take at most twelve times as many steps, including the work that they
//! defer to later entries. Work that is not counted in steps is a fixed number of tree operations.

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

/// Compares the steps of `commands` after `before` for `FEW` and for ten times as many.
#[track_caller]
fn assert_linear(before: impl Fn(u64) -> Vec<Command>, commands: impl Fn(u64, &LockTable) -> Vec<Command>) {
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
    assert!(few >= FEW / 2, "only {few} steps: some are not counted");
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
fn opening_closing_and_expiring_sessions_is_linear() {
    assert_linear(|_| vec![], |count, _| each(count, |number| open(10 + number)));
    let held = |count| {
        let opened = each(count, |number| open(10 + number));
        opened.into_iter().chain(each(count, |number| take(10 + number, lock(number)))).collect()
    };
    assert_linear(held, |count, _| {
        each(count, |number| Command::CloseSession { session: SessionId(10 + u128::from(number)) })
    });
    assert_linear(held, |count, table| {
        each(count, |number| {
            let session = SessionId(10 + u128::from(number));
            Command::ExpireSession { session, version: table.session(session).unwrap().version }
        })
    });
    // One session with everything.
    assert_linear(
        |count| each(count, |number| take(1, lock(number))),
        |_, _| vec![Command::CloseSession { session: SessionId(1) }],
    );
    assert_linear(
        |count| [take(2, "a")].into_iter().chain(each(count, |_| wait(1, "a"))).collect(),
        |_, _| vec![Command::CloseSession { session: SessionId(1) }],
    );
}

#[test]
fn acquiring_waiting_and_releasing_is_linear() {
    let none = |_| vec![];
    let held = |_| vec![take(1, "a")];
    let queue = |count| [take(1, "a")].into_iter().chain(each(count, |_| wait(2, "a"))).collect();
    assert_linear(none, |count, _| each(count, |number| take(1, lock(number))));
    assert_linear(held, |count, _| each(count, |_| take(2, "a")));
    assert_linear(held, |count, _| each(count, |_| wait(2, "a")));
    // Retries of one request.
    let again = Acquire { request: Some("r".into()), wait: Wait::Forever, ..acquire(2, "a") };
    assert_linear(held, |count, _| each(count, |_| Command::Acquire(again.clone())));
    // Each release admits the next request.
    assert_linear(queue, |count, _| {
        each(count, |number| release(if number == 0 { 1 } else { 2 }, "a", number + 1))
    });
    // One release admits all.
    let readers = |count| {
        let reader = || Acquire { wait: Wait::Forever, mode: Mode::Shared, ..acquire(2, "a") };
        [take(1, "a")].into_iter().chain(each(count, |_| Command::Acquire(reader()))).collect()
    };
    assert_linear(readers, |_, _| vec![release(1, "a", 1)]);
    assert_linear(queue, |count, _| {
        each(count, |number| Command::Cancel {
            session: SessionId(2),
            what: Waiting::Ticket(lockkeeper_core::Ticket(count - number)),
        })
    });
    // Hand-over to the next candidate. A candidate found by its owner, or far behind, costs a scan of the queue, which the
    // step budget of the entry bounds.
    let candidates = |count| {
        let candidate = || Acquire { wait: Wait::Forever, value: Some("v".into()), ..acquire(2, "a") };
        [take(1, "a")].into_iter().chain(each(count, |_| Command::Acquire(candidate()))).collect()
    };
    assert_linear(candidates, |count, _| {
        each(count, |number| Command::HandOver {
            session: SessionId(if number == 0 { 1 } else { 2 }),
            lock: "a".into(),
            token: Token(number + 1),
            to: "v".into(),
        })
    });
}

#[test]
fn force_release_is_linear() {
    let force = |name: String| Command::ForceRelease { lock: name.into(), reason: "r".into(), by: "".into() };
    assert_linear(
        |count| each(count, |number| take(1, lock(number))),
        |count, _| each(count, |number| force(lock(number))),
    );
    let sharers =
        |count| each(count, |_| Command::Acquire(Acquire { mode: Mode::Shared, ..acquire(1, "a") }));
    assert_linear(sharers, |_, _| vec![force("a".to_owned())]);
}

#[test]
fn waiting_and_wounding_of_scopes_is_linear() {
    for policy in [Policy::Detect, Policy::WaitDie, Policy::WoundWait] {
        let scoped = move |number: u64, name: String, wait| {
            let scope = Some(format!("scope-{number}").into());
            Command::Acquire(Acquire { scope, policy, wait, ..acquire(1, name) })
        };
        // Each scope holds a lock of its own and waits for that of the next one.
        assert_linear(
            move |count| each(count, |number| scoped(number, lock(number), Wait::No)),
            move |count, _| each(count - 1, |number| scoped(number, lock(number + 1), Wait::Forever)),
        );
        // All of them wait for the same lock.
        assert_linear(
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
fn values_rates_and_rules_are_linear() {
    let put = |number: u64| Command::PutValue {
        key: lock(number).into(),
        value: vec![1].into(),
        fence: None,
        if_version: None,
    };
    assert_linear(|_| vec![], |count, _| each(count, put));
    assert_linear(
        |count| each(count, put),
        |count, _| {
            each(count, |number| Command::DeleteValue {
                key: lock(number).into(),
                fence: None,
                if_version: None,
            })
        },
    );
    assert_linear(
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
    assert_linear(
        |_| vec![],
        |count, _| each(count, |number| Command::ChangeAccess { by: "root".into(), change: token(number) }),
    );
    assert_linear(
        |_| vec![],
        |count, _| each(count, |_| Command::AuditNote { by: "root".into(), text: "done".into() }),
    );
}

/// Waits and lock-delays that end at the same moment.
#[test]
fn ends_of_waits_and_lock_delays_are_linear() {
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
