//! Memory per lock, session and wait: `cargo run --release -p lockkeeper-core --example memory`.
//!
//! Measured as the growth of the resident memory of the process, so it includes the overhead of the allocator.

#![allow(clippy::unwrap_used, reason = "an example stops at the first failure")]

use lockkeeper_core::{Acquire, Batch, CellTime, Command, LockName, LockTable, Locks, SessionId, Wait};

const PAGE_BYTES: u64 = 4_096;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * PAGE_BYTES
}

fn apply(table: &mut LockTable, command: Command) {
    table
        .apply(table.applied() + 1, &Batch { now: CellTime(0), utc_ms: 0, commands: vec![command] })
        .unwrap();
}

/// A session id, spread over the whole range like random ones.
fn spread(number: u64) -> SessionId {
    SessionId(u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

fn open(table: &mut LockTable, number: u64) {
    let command = Command::OpenSession {
        session: spread(number),
        ttl_ms: 10_000,
        owner: "web-17/worker-3".into(),
        identity: None,
    };
    apply(table, command);
}

/// Prints the bytes that each of `count` additions takes.
fn measure(what: &str, table: &mut LockTable, count: u64, mut add: impl FnMut(&mut LockTable, u64)) {
    let before = resident_bytes();
    (0..count).for_each(|number| add(table, number));
    println!("{what}: {} bytes each, {count} of them", resident_bytes().saturating_sub(before) / count);
}

fn main() {
    let held = |request: bool| {
        move |table: &mut LockTable, number: u64| {
            let name = LockName::from(format!("orders/{:07}", number * 7 % 1_000_000));
            let request = request.then(|| format!("{number:016x}").into());
            let acquire = Acquire { request, ..Acquire::new(spread(number % 1_000), Locks::One(name)) };
            apply(table, Command::Acquire(acquire));
        }
    };
    let with_sessions = || {
        let mut table = LockTable::new();
        (0..1_000).for_each(|number| open(&mut table, number));
        table
    };
    let mut tables = Vec::new();
    let mut table = with_sessions();
    measure("a lock held with a request id", &mut table, 1_000_000, held(true));
    tables.push(table);
    let mut table = with_sessions();
    measure("a lock held without a request id", &mut table, 1_000_000, held(false));
    tables.push(table);
    let mut table = LockTable::new();
    measure("an empty session", &mut table, 100_000, open);
    tables.push(table);
    let mut table = with_sessions();
    measure("a wait", &mut table, 100_000, |table, number| {
        let lock = Locks::One(format!("busy/{}", number % 20).into());
        let request = Some(format!("{number:016x}").into());
        let wait = Wait::ForMs(60_000 + number);
        let acquire = Acquire { request, wait, ..Acquire::new(spread(number % 1_000), lock) };
        apply(table, Command::Acquire(acquire));
    });
    tables.push(table);
    // Tables are kept until the end, so that no memory is reused.
    drop(tables);
}
