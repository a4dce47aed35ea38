//! Entries with as many commands as the leader puts into one.

use lockkeeper_core::bounds::Bounds;
use lockkeeper_core::limits::{ENTRY_COST_MAX, LOCKS_PER_REQUEST_MAX};
use lockkeeper_core::{Acquire, Command, Locks, SessionId, Wait};

use super::cell::{COMMANDS_MAX, Cell, acquire, open, scoped, shared, waiting};

/// The first holders of `count` locks, each with one waiting request.
fn contended(cell: &mut Cell, count: usize) -> Vec<Command> {
    cell.apply((1..=2).map(open).collect());
    let name = |number: usize| format!("orders/{number:06}");
    cell.apply_all((0..count).map(|number| Command::Acquire(acquire(1, &name(number)))));
    cell.apply_all((0..count).map(|number| Command::Acquire(waiting(2, &name(number)))));
    held_by(cell, 1)
}

fn held_by(cell: &Cell, session: u128) -> Vec<Command> {
    let session = SessionId(session);
    let release = |grant: lockkeeper_core::Grant| Command::Release {
        session,
        lock: grant.locks.as_slice()[0].clone(),
        token: grant.token,
        forget: true,
    };
    cell.table.grants_of(session).map(release).collect()
}

/// The ordinary entry of a busy cell: as many acquires as releases, 4,096 in all.
#[test]
fn full_entry_of_ordinary_commands() {
    let mut cell = Cell::default();
    cell.apply((1..=2).map(open).collect());
    let acquires = |from: usize| {
        (from..from + COMMANDS_MAX / 2)
            .map(|number| Command::Acquire(acquire(1, &format!("orders/{number:06}"))))
            .collect::<Vec<_>>()
    };
    cell.apply(acquires(0));
    let mut commands = held_by(&cell, 1);
    commands.extend(acquires(COMMANDS_MAX / 2));
    cell.reset();
    cell.apply_all(commands);
    cell.print("2,048 releases and 2,048 acquires");
    assert!(cell.entries <= 2, "they fit into one entry");
    assert!(!cell.table.has_backlog());
}

/// No entry of single-lock commands can take more, whatever the table holds.
#[test]
fn steps_of_a_full_entry_are_bounded() {
    let commands = vec![Command::Acquire(acquire(1, "a")); COMMANDS_MAX];
    assert!(Bounds::REAL.steps_per_entry_max(&commands) <= 62_500);
    // Requests for many locks fill an entry by their cost.
    let names = (0..LOCKS_PER_REQUEST_MAX).map(|lock| format!("{lock:03}").into());
    let wide = Command::Acquire(Acquire { locks: Locks::many(names), ..acquire(1, "") });
    let wide = vec![wide.clone(); ENTRY_COST_MAX.div_ceil(wide.cost()) as usize];
    assert!(Bounds::REAL.steps_per_entry_max(&wide) <= 62_500);
}

/// Each release admits the next request.
#[test]
fn full_entry_of_releases_that_hand_off() {
    let mut cell = Cell::default();
    let releases = contended(&mut cell, COMMANDS_MAX);
    cell.reset();
    cell.apply_all(releases);
    cell.drain();
    cell.print("4,096 releases that hand off");
    assert_eq!(cell.table.counts().waiting, 0);
}

/// One entry spends all budgets: a deferred search, waits that end, releases that hand off, ended sessions and their answers.
#[test]
fn entry_that_spends_all_budgets() {
    const SESSIONS: u128 = 3_000;
    let mut cell = Cell::default();
    let mut releases = contended(&mut cell, COMMANDS_MAX);
    // Long queues of brief waits, and scopes that search them.
    cell.apply_all((3..=4).map(open));
    cell.apply_all((0..250).map(|scope| Command::Acquire(scoped(shared(acquire(3, "L1")), scope))));
    cell.apply(vec![Command::Acquire(acquire(4, "L2"))]);
    let brief = |lock: &str| Command::Acquire(Acquire { wait: Wait::ForMs(1_000), ..acquire(4, lock) });
    cell.apply_all((0..3_500).map(|_| brief("L1")));
    cell.apply_all((0..3_500).map(|_| brief("L2")));
    // Sessions with a lock and answers.
    cell.apply_all((10..10 + SESSIONS).map(open));
    for number in 0..3 {
        cell.apply_all((10..10 + SESSIONS).map(|session| {
            let request = Some(format!("r{number}").into());
            Command::Acquire(Acquire { request, ..acquire(session, &format!("own-{session}-{number}")) })
        }));
    }
    cell.apply((0..30).map(|scope| Command::Acquire(scoped(waiting(3, "L2"), scope))).collect());
    assert!(cell.table.has_backlog());
    let table = cell.table.clone();
    releases.splice(
        0..0,
        (10..10 + SESSIONS / 4).map(|id| Command::ExpireSession {
            session: SessionId(id),
            version: table.session(SessionId(id)).unwrap().version,
        }),
    );
    cell.reset();
    let mut commands = releases.into_iter();
    let (mut entry, mut cost) = (Vec::new(), 0);
    while entry.len() < COMMANDS_MAX && cost < ENTRY_COST_MAX {
        let command = commands.next().unwrap();
        cost += command.cost();
        entry.push(command);
    }
    cell.apply_at(cell.table.now().plus_ms(2_000), entry);
    cell.print("all budgets at once");
    assert!(cell.table.has_backlog());
}
