//! Every command has linear cost: ten times as many take at most twelve times as many steps, including the work that they
//! defer to later entries. Work that is not counted in steps is a fixed number of tree operations.
//!
//! The two tables at the end name the scenarios of every command and every change of access. They do not compile when one
//! is missing.

#![allow(clippy::unwrap_used)]

mod scenarios;

use lockkeeper_core::limits::STATE_BYTES_SETTING_MIN;
use lockkeeper_core::{
    AccessChange, Acquire, Batch, CellTime, CellVersion, Command, LockTable, Locks, SessionId, Token, Wait,
};

use self::scenarios::{
    acquires, audit_notes, cancels, change, changes, close_sessions, deletes, expire_sessions,
    first_administrators, force_releases, grant, hand_overs, many_held, next_version_notes, none, one_each,
    open_sessions, puts, quotas, raised_versions, rates, releases, revoked_rules, ticks, token,
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

type CommandsOf = Box<dyn Fn(u64, &LockTable) -> Vec<Command>>;

/// Commands after some others. Compares the steps for `FEW` of them with those for ten times as many.
struct Scenario {
    before: Box<dyn Fn(u64) -> Vec<Command>>,
    commands: CommandsOf,
}

fn scenario(
    before: impl Fn(u64) -> Vec<Command> + 'static,
    commands: impl Fn(u64, &LockTable) -> Vec<Command> + 'static,
) -> Scenario {
    Scenario { before: Box::new(before), commands: Box::new(commands) }
}

impl Scenario {
    fn steps(&self, count: u64) -> u64 {
        let mut cell = Cell::default();
        cell.table.support(CellVersion::RELEASED).unwrap();
        cell.run((1..=2).map(open));
        cell.run((self.before)(count));
        cell.steps = 0;
        let commands = (self.commands)(count, &cell.table);
        cell.run(commands);
        cell.steps
    }

    fn check(&self, name: &str) {
        let (few, many) = (self.steps(FEW), self.steps(10 * FEW));
        println!("{name}: {few} steps for {FEW}, {many} for ten times as many");
        assert!(few >= FEW / 2, "{name}: only {few} steps: some are not counted");
        assert!(many <= 12 * few, "{name}: {few} steps for {FEW}, {many} for ten times as many");
    }
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

/// Takes or awaits ten locks that no other number uses.
fn ten(session: u64, number: u64) -> Acquire {
    let names = (0..10).map(|lock| format!("ten-{number}-{lock}").into());
    Acquire { wait: Wait::Forever, locks: Locks::many(names), ..acquire(session, "") }
}

fn request(acquire: Acquire, number: u64) -> Command {
    Command::Acquire(Acquire { request: Some(format!("r{number}").into()), ..acquire })
}

fn lock(number: u64) -> String {
    format!("lock-{number}")
}

fn release(session: u64, lock: impl Into<String>, token: u64) -> Command {
    let lock = lock.into().into();
    Command::Release { session: SessionId(session.into()), lock, token: Token(token), forget: false }
}

/// Names the scenarios of each variant of an enum. Does not compile when a variant is missing.
macro_rules! scenarios {
    ($all:ident, $complete:ident, $of:ident { $($(#[$attribute:meta])* $variant:ident => $scenarios:expr,)* }) => {
        fn $all() -> Vec<(&'static str, Vec<Scenario>)> {
            vec![$($(#[$attribute])* (stringify!($variant), $scenarios),)*]
        }

        #[expect(dead_code, reason = "it only has to compile")]
        fn $complete(it: &$of) {
            match it {
                $($(#[$attribute])* $of::$variant { .. } => {})*
            }
        }
    };
}

scenarios!(of_commands, every_command_has_scenarios, Command {
    OpenSession => open_sessions(),
    CloseSession => close_sessions(),
    ExpireSession => expire_sessions(),
    Acquire => acquires(),
    Cancel => cancels(),
    Release => releases(),
    ForceRelease => force_releases(),
    PutValue => puts(),
    DeleteValue => deletes(),
    HandOver => hand_overs(),
    TakeRate => rates(),
    Tick => ticks(),
    ChangeAccess => of_changes().into_iter().flat_map(|(_, scenarios)| scenarios).collect(),
    AuditNote => audit_notes(),
    RaiseCellVersion => raised_versions(),
    #[cfg(feature = "next-version")]
    NextVersionNote => next_version_notes(),
});

scenarios!(of_changes, every_change_has_scenarios, AccessChange {
    Grant => changes(none, grant),
    Revoke => revoked_rules(),
    AddToken => changes(none, token),
    RevokeToken => changes(
        |count| each(count, |number| change(token(number))),
        |number| AccessChange::RevokeToken { id: format!("{number:x}").into() },
    ),
    SetQuota => quotas(),
    SetSessions => changes(one_each, |number| {
        AccessChange::SetSessions { identity: lock(number).into(), sessions: Some(10) }
    }),
    SetStateBytes => changes(many_held, |number| {
        AccessChange::SetStateBytes { bytes: Some(STATE_BYTES_SETTING_MIN + number) }
    }),
    Enable => first_administrators(),
});

#[test]
fn every_command_is_linear() {
    for (command, scenarios) in of_commands() {
        for (scenario, number) in scenarios.iter().zip(1..) {
            scenario.check(&format!("{command} {number}"));
        }
    }
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
