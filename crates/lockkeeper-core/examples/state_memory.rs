//! Resident memory of a process for each logical byte of state (docs/adr/0020-bound-on-state.md):
//!
//! ```text
//! cargo run --release -p lockkeeper-core --example state_memory
//! ```
//!
//! Fills a table with one kind of record, up to 256 MiB of logical bytes. Each kind has a process of its own, so that no
//! memory is reused. The figures include the overhead of the allocator.

#![allow(clippy::expect_used, reason = "an example stops at the first failure")]

use std::process::Command as Process;

use lockkeeper_core::{Acquire, Batch, CellTime, Command, LockTable, Locks, SessionId, TakeRate, Wait};

const BYTES: u64 = 256 << 20;
const COMMANDS_PER_ENTRY: u64 = 1_024;
/// Requests of one session, below the number of answers that are remembered for it.
const REQUESTS_PER_SESSION: u64 = 200;

/// A kind of record: its name, and the commands that add the record with each number.
type Kind = (&'static str, fn(u64) -> Vec<Command>);

const KINDS: [Kind; 10] = [
    ("values of 16 bytes", |number| vec![put(number, 16)]),
    ("values of 64 KiB", |number| vec![put(number, 64 * 1024)]),
    ("sessions", |number| vec![open(number)]),
    ("held locks with names of 16 bytes", |number| vec![Command::Acquire(acquire(number, name(number, 16)))]),
    ("held locks with names of 512 bytes", |number| {
        vec![Command::Acquire(acquire(number, name(number, 512)))]
    }),
    ("requests that wait", |number| vec![wait(number, None)]),
    ("candidates with values of 512 bytes", |number| vec![wait(number, Some(name(number, 512)))]),
    ("rate limiters", |number| {
        vec![Command::TakeRate(TakeRate {
            limiter: name(number, 16).into(),
            permits: 1_000,
            interval_ns: 1_000_000_000,
            burst: 1_000,
        })]
    }),
    ("remembered answers", refused),
    ("scopes that hold a lock", |number| {
        let scope = Some(format!("scope-{number}").into());
        vec![Command::Acquire(Acquire { scope, ..acquire(number, name(number, 16)) })]
    }),
];

/// A session for each of many numbers.
fn session(number: u64) -> SessionId {
    SessionId(u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

fn open(number: u64) -> Command {
    let owner = "web-17/worker-3".into();
    Command::OpenSession { session: session(number), ttl_ms: 10_000, owner, identity: None }
}

fn name(number: u64, bytes: usize) -> String {
    format!("{number:0bytes$}")
}

fn put(number: u64, bytes: usize) -> Command {
    let (key, value) = (name(number, 16).into(), vec![1; bytes].into());
    Command::PutValue { key, value, fence: None, if_version: None }
}

fn acquire(number: u64, lock: String) -> Acquire {
    let request = Some(format!("{number:016x}").into());
    Acquire { request, ..Acquire::new(session(number % 1_000), Locks::One(lock.into())) }
}

/// Waits for one of 100 locks, which another request holds.
fn wait(number: u64, value: Option<String>) -> Command {
    let lock = format!("busy/{}", number % 100);
    Command::Acquire(Acquire { wait: Wait::Forever, value: value.map(Into::into), ..acquire(number, lock) })
}

/// A refused request. Session 0 holds the lock.
fn refused(number: u64) -> Vec<Command> {
    let own = 1_000 + number / REQUESTS_PER_SESSION;
    let request = Some(format!("{number:016x}").into());
    let lock = Locks::One("busy/0".into());
    let again = Command::Acquire(Acquire { request, ..Acquire::new(session(own), lock) });
    match number % REQUESTS_PER_SESSION {
        0 => vec![open(own), again],
        _ => vec![again],
    }
}

fn apply(table: &mut LockTable, commands: Vec<Command>) -> bool {
    let batch = Batch { now: CellTime(0), utc_ms: 0, commands };
    let answers = table.apply(table.applied() + 1, &batch).expect("in order").answers;
    !answers.iter().any(|answer| matches!(answer, Err(lockkeeper_core::Refusal::Limit(_))))
}

/// The value of a line of `/proc/self/status` in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the resident size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1_024
}

fn measure((what, commands): Kind) {
    let mut table = LockTable::new();
    if what != "sessions" {
        apply(&mut table, (0..1_000).map(open).collect());
    }
    let hold = |lock| Command::Acquire(Acquire::new(session(0), Locks::One(format!("busy/{lock}").into())));
    apply(&mut table, (0..100).map(hold).collect());
    let (bytes, resident) = (table.state_bytes(), resident_bytes());
    let mut records = 0;
    while table.state_bytes() < BYTES {
        let numbers = records..records + COMMANDS_PER_ENTRY;
        if !apply(&mut table, numbers.flat_map(commands).collect()) {
            break;
        }
        records += COMMANDS_PER_ENTRY;
    }
    let logical = table.state_bytes() - bytes;
    let more = resident_bytes().saturating_sub(resident);
    println!(
        "{what}: {:.2} resident bytes for a logical byte ({records} records of {} logical and {} resident bytes)",
        more as f64 / logical as f64,
        logical / records.max(1),
        more / records.max(1)
    );
}

fn main() {
    let wanted = std::env::args().nth(1);
    for kind in KINDS {
        match &wanted {
            Some(wanted) if wanted == kind.0 => measure(kind),
            Some(_) => {}
            None => {
                let own = std::env::current_exe().expect("its own path");
                assert!(Process::new(own).arg(kind.0).status().expect("a process").success(), "{}", kind.0);
            }
        }
    }
}
