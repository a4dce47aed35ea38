//! Applies entries of a cell with 10,000 sessions and locks, to profile the share of the table hash (docs/adr/0019-table-hash.md):
//!
//! ```text
//! cargo rustc --release --example table_hash -p lockkeeper-core -- -C strip=none
//! valgrind --tool=callgrind --toggle-collect='*LockTable*apply*' target/release/examples/table_hash COMMANDS_PER_ENTRY
//! callgrind_annotate --inclusive=yes callgrind.out.PID | grep -E 'chain_hash|LockTable.*apply'
//! ```
//!
//! With more than 20,000 commands in an entry it only prepares the table, which is to be subtracted.

#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an example stops at the first failure, and measures time"
)]

use lockkeeper_core::{Acquire, Batch, CellTime, Command, LockTable, Locks, Reply, SessionId, Token};

const SESSIONS: u128 = 10_000;
/// Measured pairs of acquire and release.
const PAIRS: usize = 20_000;

fn name(number: usize) -> lockkeeper_core::LockName {
    format!("orders/{number:06}").into()
}

fn acquire(session: u128, lock: usize, request: usize) -> Command {
    Command::Acquire(Acquire {
        request: Some(format!("{request:016x}").into()),
        ..Acquire::new(SessionId(session), Locks::One(name(lock)))
    })
}

fn apply(table: &mut LockTable, commands: Vec<Command>) -> Vec<Token> {
    let now = CellTime(table.now().0 + 1);
    let applied = table.apply(table.applied() + 1, &Batch { now, utc_ms: 0, commands }).expect("in order");
    let token = |answer| match answer {
        Ok(Reply::Granted(grant)) => Some(grant.token),
        _ => None,
    };
    applied.answers.into_iter().filter_map(token).collect()
}

fn main() {
    let per_entry: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut table = LockTable::new();
    for session in 0..SESSIONS {
        let owner = format!("web-{session}").into();
        let open =
            Command::OpenSession { session: SessionId(session), ttl_ms: 10_000, owner, identity: None };
        apply(&mut table, vec![open, acquire(session, session as usize, 0)]);
    }
    let began = std::time::Instant::now();
    for round in 0..PAIRS / per_entry {
        let numbers = round * per_entry..(round + 1) * per_entry;
        let session = |number: usize| number as u128 % SESSIONS;
        let lock = |number: usize| SESSIONS as usize + number % SESSIONS as usize;
        let tokens = apply(
            &mut table,
            numbers.clone().map(|number| acquire(session(number), lock(number), number + 1)).collect(),
        );
        let release = |(number, token): (usize, &Token)| Command::Release {
            session: SessionId(session(number)),
            lock: name(lock(number)),
            token: *token,
            forget: true,
        };
        apply(&mut table, numbers.zip(&tokens).map(release).collect());
    }
    let commands = 2 * (PAIRS / per_entry) * per_entry;
    println!(
        "{per_entry} commands in an entry: {} ns for a command",
        began.elapsed().as_nanos() as usize / commands.max(1)
    );
}
