//! Every command has linear cost: ten times as many take at most twelve times as many steps, including the work that they
//! defer to later entries. Work that is not counted in steps is a fixed number of tree operations.
//!
//! The two tables at the end name the scenarios of every command and every change of access. They do not compile when one
//! is missing.

#![allow(clippy::unwrap_used)]

use lockkeeper_core::limits::STATE_BYTES_SETTING_MIN;
use lockkeeper_core::{
    AccessChange, Acquire, Batch, CellTime, CellVersion, Command, LockTable, Locks, Mode, Policy, Quota,
    Right, Rights, SessionId, TakeRate, Ticket, Token, Wait, Waiting,
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

/// Commands after some others. Compares the steps for `FEW` of them with those for ten times as many.
struct Scenario {
    before: Box<dyn Fn(u64) -> Vec<Command>>,
    commands: Box<dyn Fn(u64, &LockTable) -> Vec<Command>>,
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

fn none(_: u64) -> Vec<Command> {
    vec![]
}

/// Session 1 holds a lock.
fn held(_: u64) -> Vec<Command> {
    vec![take(1, "a")]
}

/// Session 1 holds a lock for which session 2 waits.
fn queue(count: u64) -> Vec<Command> {
    held(count).into_iter().chain(each(count, |_| wait(2, "a"))).collect()
}

/// Session 1 holds many locks.
fn many_held(count: u64) -> Vec<Command> {
    each(count, |number| take(1, lock(number)))
}

/// Each of many sessions holds a lock.
fn one_each(count: u64) -> Vec<Command> {
    let opened = each(count, |number| open(10 + number));
    opened.into_iter().chain(each(count, |number| take(10 + number, lock(number)))).collect()
}

fn open_sessions() -> Vec<Scenario> {
    vec![scenario(none, |count, _| each(count, |number| open(10 + number)))]
}

fn close_sessions() -> Vec<Scenario> {
    let close = |session: u64| Command::CloseSession { session: SessionId(session.into()) };
    let awaits = |count| [take(2, "a")].into_iter().chain(each(count, |_| wait(1, "a"))).collect();
    vec![
        scenario(one_each, move |count, _| each(count, |number| close(10 + number))),
        // One session with everything.
        scenario(many_held, move |_, _| vec![close(1)]),
        scenario(awaits, move |_, _| vec![close(1)]),
    ]
}

fn expire_sessions() -> Vec<Scenario> {
    let expire = |count: u64, table: &LockTable| {
        each(count, |number| {
            let session = SessionId(10 + u128::from(number));
            Command::ExpireSession { session, version: table.session(session).unwrap().version }
        })
    };
    vec![scenario(one_each, expire)]
}

fn acquires() -> Vec<Scenario> {
    let refused = |count, _: &LockTable| each(count, |number| request(acquire(2, "a"), number));
    // A full table, which forgets old answers for each new one.
    let full = move |count| {
        let set = AccessChange::SetStateBytes { bytes: Some(STATE_BYTES_SETTING_MIN) };
        let fill = each(20, |number| Command::PutValue {
            key: lock(number).into(),
            value: vec![1; 50_000].into(),
            fence: None,
            if_version: None,
        });
        held(count)
            .into_iter()
            .chain([change(set)])
            .chain(fill)
            .chain(refused(count, &LockTable::new()))
            .collect()
    };
    let mut all = vec![
        scenario(none, |count, _| many_held(count)),
        scenario(held, |count, _| each(count, |_| take(2, "a"))),
        scenario(held, |count, _| each(count, |_| wait(2, "a"))),
        scenario(queue, |count, _| each(count, |_| wait(2, "a"))),
        // Retries of one request, and requests with ids of their own.
        scenario(held, |count, _| {
            let again = Acquire { wait: Wait::Forever, ..acquire(2, "a") };
            each(count, |_| request(again.clone(), 0))
        }),
        scenario(none, |count, _| each(count, |number| request(acquire(1, lock(number)), number))),
        scenario(held, refused),
        scenario(full, |count, _| each(count, |number| request(acquire(2, "a"), count + number))),
        // Several locks at once, granted and waiting.
        scenario(none, |count, _| each(count, |number| Command::Acquire(ten(1, number)))),
        scenario(
            |count| each(count, |number| take(1, format!("ten-{number}-9"))),
            |count, _| each(count, |number| Command::Acquire(ten(2, number))),
        ),
    ];
    all.extend([Policy::Detect, Policy::WaitDie, Policy::WoundWait].into_iter().flat_map(scopes));
    all
}

/// Scopes that wait for each other in a chain, and scopes that all wait for the same lock.
fn scopes(policy: Policy) -> Vec<Scenario> {
    let scoped = move |number: u64, name: String, wait| {
        let scope = Some(format!("scope-{number}").into());
        Command::Acquire(Acquire { scope, policy, wait, ..acquire(1, name) })
    };
    let own = move |count| each(count, |number| scoped(number, lock(number), Wait::No));
    vec![
        scenario(own, move |count, _| {
            each(count - 1, |number| scoped(number, lock(number + 1), Wait::Forever))
        }),
        scenario(
            move |count| held(count).into_iter().chain(own(count)).collect(),
            move |count, _| each(count, |number| scoped(number, "a".to_owned(), Wait::Forever)),
        ),
    ]
}

fn cancels() -> Vec<Scenario> {
    let by_id = |session: u64, count: u64| {
        each(count, |number| Command::Cancel {
            session: SessionId(session.into()),
            what: Waiting::Request(format!("r{number}").into()),
        })
    };
    let by_ticket = |count: u64, _: &LockTable| {
        each(count, |number| Command::Cancel {
            session: SessionId(2),
            what: Waiting::Ticket(Ticket(count - number)),
        })
    };
    let waiting = |count| {
        let waits = Acquire { wait: Wait::Forever, ..acquire(2, "a") };
        held(count).into_iter().chain(each(count, |number| request(waits.clone(), number))).collect()
    };
    let granted = |count| each(count, |number| request(acquire(1, lock(number)), number));
    let granted_ten = |count| each(count, |number| request(ten(1, number), number));
    vec![
        scenario(queue, by_ticket),
        scenario(waiting, move |count, _| by_id(2, count)),
        scenario(granted, move |count, _| by_id(1, count)),
        scenario(granted_ten, move |count, _| by_id(1, count)),
        // The acquire was lost or comes later.
        scenario(none, move |count, _| by_id(1, count)),
    ]
}

fn releases() -> Vec<Scenario> {
    let readers = |count| {
        let reader = || Acquire { wait: Wait::Forever, mode: Mode::Shared, ..acquire(2, "a") };
        held(count).into_iter().chain(each(count, |_| Command::Acquire(reader()))).collect()
    };
    vec![
        scenario(many_held, |count, _| each(count, |number| release(1, lock(number), number + 1))),
        // Each release admits the next request.
        scenario(queue, |count, _| {
            each(count, |number| release(if number == 0 { 1 } else { 2 }, "a", number + 1))
        }),
        // One release admits all.
        scenario(readers, |_, _| vec![release(1, "a", 1)]),
    ]
}

fn hand_overs() -> Vec<Scenario> {
    let candidate = |value: String| {
        Command::Acquire(Acquire { wait: Wait::Forever, value: Some(value.into()), ..acquire(2, "a") })
    };
    let candidates = move |count| {
        held(count)
            .into_iter()
            .chain(each(count, |number| candidate(format!("v{number}"))))
            .collect::<Vec<_>>()
    };
    let hand_over = |number: u64, to: String| Command::HandOver {
        session: SessionId(if number == 0 { 1 } else { 2 }),
        lock: "a".into(),
        token: Token(number + 1),
        to: to.into(),
    };
    let to_owner = |count: u64| {
        let last = Acquire { wait: Wait::Forever, ..acquire(3, "a") };
        let owner = Command::OpenSession {
            session: SessionId(3),
            ttl_ms: 10_000,
            owner: "last".into(),
            identity: None,
        };
        queue(count).into_iter().chain([owner, Command::Acquire(last)]).collect()
    };
    vec![
        // To the first, and to the last.
        scenario(candidates, move |count, _| each(count, |number| hand_over(number, format!("v{number}")))),
        scenario(candidates, move |count, _| {
            each(count, |number| hand_over(number, format!("v{}", count - 1 - number)))
        }),
        // To an owner far behind.
        scenario(to_owner, move |count, _| each(count, |_| hand_over(0, "last".to_owned()))),
    ]
}

fn force_releases() -> Vec<Scenario> {
    let force = |name: String| Command::ForceRelease { lock: name.into(), reason: "r".into(), by: "".into() };
    let sharers =
        |count| each(count, |_| Command::Acquire(Acquire { mode: Mode::Shared, ..acquire(1, "a") }));
    vec![
        scenario(many_held, move |count, _| each(count, |number| force(lock(number)))),
        scenario(sharers, move |_, _| vec![force("a".to_owned())]),
    ]
}

fn put(number: u64) -> Command {
    Command::PutValue { key: lock(number).into(), value: vec![1].into(), fence: None, if_version: None }
}

fn puts() -> Vec<Scenario> {
    vec![
        scenario(none, |count, _| each(count, put)),
        scenario(|count| each(count, put), |count, _| each(count, put)),
    ]
}

fn deletes() -> Vec<Scenario> {
    let delete = |number| Command::DeleteValue { key: lock(number).into(), fence: None, if_version: None };
    vec![scenario(|count| each(count, put), move |count, _| each(count, delete))]
}

fn rates() -> Vec<Scenario> {
    let take = |number: u64| {
        let limiter = lock(number).into();
        Command::TakeRate(TakeRate { limiter, permits: 1, interval_ns: 1_000, burst: 5 })
    };
    vec![
        scenario(none, move |count, _| each(count, take)),
        scenario(none, move |count, _| each(count, |_| take(1))),
    ]
}

fn ticks() -> Vec<Scenario> {
    vec![scenario(queue, |count, _| each(count, |_| Command::Tick))]
}

fn audit_notes() -> Vec<Scenario> {
    let note = || Command::AuditNote { by: "root".into(), text: "done".into() };
    vec![scenario(none, move |count, _| each(count, |_| note()))]
}

fn raised_versions() -> Vec<Scenario> {
    let to = CellVersion::RELEASED;
    vec![scenario(many_held, move |count, _| each(count, |_| Command::RaiseCellVersion { to }))]
}

#[cfg(feature = "next-version")]
fn next_version_notes() -> Vec<Scenario> {
    let note = || Command::NextVersionNote { text: "new".into() };
    vec![scenario(none, move |count, _| each(count, |_| note()))]
}

fn change(change: AccessChange) -> Command {
    Command::ChangeAccess { by: "root".into(), change }
}

/// The change with each number, after others.
fn changes(
    before: impl Fn(u64) -> Vec<Command> + 'static,
    number: impl Fn(u64) -> AccessChange + 'static,
) -> Vec<Scenario> {
    vec![scenario(before, move |count, _| each(count, |n| change(number(n))))]
}

fn grant(number: u64) -> AccessChange {
    let identity = format!("ada-{}", number / 200).into();
    AccessChange::Grant { identity, prefix: lock(number).into(), rights: Rights::of([Right::Acquire]) }
}

fn token(number: u64) -> AccessChange {
    AccessChange::AddToken {
        id: format!("{number:x}").into(),
        identity: "ci".into(),
        salt: [1; 16],
        hash: [2; 32],
    }
}

fn revoked_rules() -> Vec<Scenario> {
    let revoke = |number| match grant(number) {
        AccessChange::Grant { identity, prefix, .. } => AccessChange::Revoke { identity, prefix },
        other => other,
    };
    changes(|count| each(count, |number| change(grant(number))), revoke)
}

fn quotas() -> Vec<Scenario> {
    let quota = |number: u64| AccessChange::SetQuota {
        namespace: format!("space-{number}").into(),
        quota: Quota { locks: Some(10), ..Quota::default() },
    };
    // The first one counts all locks and values.
    let used = |count| many_held(count).into_iter().chain(each(count, put)).collect();
    let mut all = changes(none, quota);
    all.push(scenario(used, move |_, _| vec![change(quota(0))]));
    all
}

fn first_administrators() -> Vec<Scenario> {
    changes(one_each, |number| AccessChange::Enable {
        id: format!("{number:x}").into(),
        identity: "root".into(),
        salt: [1; 16],
        hash: [2; 32],
    })
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
