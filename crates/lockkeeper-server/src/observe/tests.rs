//! Every view has a bound of its own, and a list that is read page by page costs as much as it is long: ten times as much
//! in the table costs at most twelve times as much. Counted in the elements of the answers; what the lock table does for a view is
//! counted in steps by the tests of `lockkeeper-core`.

use std::sync::Mutex;

use lockkeeper_core::{Acquire, Batch, CellTime, Command, LockTable, Locks, SessionId, Wait};
use serde::Serialize;
use serde_json::Value;

use super::Look;
use super::sessions::Wanted;
use crate::expiry::Expiry;
use crate::hourly_stats::HourlyStats;

const FEW: u64 = 300;

/// Sessions, locks, elections, waiters and forced releases, so many of each.
fn table(count: u64) -> Mutex<LockTable> {
    let mut table = LockTable::new();
    let mut run = |command: Command| {
        let batch = Batch { now: table.now(), utc_ms: 0, commands: vec![command] };
        table.apply(table.applied() + 1, &batch).unwrap();
    };
    let take = |number: u64, lock: &str, wait| {
        let request = Acquire::new(SessionId(u128::from(number) << 96), Locks::One(lock.into()));
        Command::Acquire(Acquire { wait, ..request })
    };
    for number in 1..=count {
        let session = SessionId(u128::from(number) << 96);
        run(Command::OpenSession { session, ttl_ms: 60_000, owner: "o".into(), identity: None });
        run(take(number, &format!("lock/{number:05}"), Wait::No));
        run(take(number, &format!("election/{number:05}"), Wait::No));
        run(take(number, &format!("forced/{number:05}"), Wait::No));
        let lock = format!("forced/{number:05}").into();
        run(Command::ForceRelease { lock, reason: "test".into(), by: "ada".into() });
        // Everybody waits for the one before, and for one lock together.
        run(take(number, &format!("lock/{:05}", (number - 1).max(1)), Wait::Forever));
        run(take(number, "crowded", Wait::Forever));
        // One lock with a long history.
        run(Command::ForceRelease { lock: "busy".into(), reason: "test".into(), by: "ada".into() });
        run(take(number, "busy", Wait::No));
    }
    Mutex::new(table)
}

fn look(table: &Mutex<LockTable>) -> Look<'_> {
    Look { table: table.lock().unwrap(), now: CellTime(1_000_000) }
}

/// How many numbers, texts and so on there are in a view.
fn elements(view: &impl Serialize) -> usize {
    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
            Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
            _ => 1,
        }
    }
    count(&serde_json::to_value(view).unwrap())
}

type Measure = fn(&Look<'_>) -> usize;

/// Views of one page.
const VIEWS: [(&str, Measure, usize); 9] = [
    ("history", |look| elements(&look.history("busy", 0).unwrap()), 2_000),
    ("audit", |look| elements(&look.audit(0)), 3_000),
    ("top", |look| elements(&look.top(&HourlyStats::default(), usize::MAX)), 2_000),
    ("graph", |look| elements(&look.graph(None).unwrap()), 12_000),
    ("graph of a lock", |look| elements(&look.graph(Some("crowded")).unwrap()), 12_000),
    ("sessions", |look| elements(&look.sessions(&Expiry::default(), &Wanted::default())), 1_000),
    ("locks", |look| elements(&look.locks("", "")), 3_000),
    ("a lock", |look| elements(&look.lock_in_full("crowded").unwrap()), 5_000),
    ("elections", |look| elements(&look.elections("")), 2_000),
];

/// Lists, page by page to their end.
const LISTS: [(&str, Measure); 3] = [
    ("sessions", |look| {
        let (mut sum, mut wanted) = (0, Wanted::default());
        loop {
            let page = serde_json::to_value(look.sessions(&Expiry::default(), &wanted)).unwrap();
            sum += elements(&page);
            let last = page["sessions"].as_array().unwrap().last().map(|session| session["session"].clone());
            match (last, page["more"] == true) {
                (Some(last), true) => wanted.after = Wanted::behind(last.as_str().unwrap()).unwrap(),
                _ => return sum,
            }
        }
    }),
    ("locks", |look| {
        let (mut sum, mut after) = (0, String::new());
        loop {
            let page = serde_json::to_value(look.locks("", &after)).unwrap();
            sum += elements(&page);
            match page["more"] == true {
                true => {
                    after = page["locks"].as_array().unwrap().last().unwrap()["lock"].as_str().unwrap().into()
                }
                false => return sum,
            }
        }
    }),
    ("elections", |look| {
        let (mut sum, mut after) = (0, String::new());
        loop {
            let page = serde_json::to_value(look.elections(&after)).unwrap();
            sum += elements(&page);
            let elections = page["elections"].as_array().unwrap();
            match page["more"] == true {
                true => after = elections.last().unwrap()["election"].as_str().unwrap().into(),
                false => return sum,
            }
        }
    }),
];

#[test]
fn views_and_lists_cost_no_more_than_they_show() {
    let (few, many) = (table(FEW), table(10 * FEW));
    for (name, measure, bound) in VIEWS {
        let (one, other) = (measure(&look(&few)), measure(&look(&many)));
        println!("{name}: {one} and {other} elements");
        assert!(one > 20, "{name}: {one} elements");
        assert!(other <= bound && other <= 12 * one, "{name}: {one} elements, {other} for ten times as much");
    }
    for (name, measure) in LISTS {
        let (one, other) = (measure(&look(&few)), measure(&look(&many)));
        println!("all {name}: {one} and {other} elements");
        assert!(
            other >= 5 * one && other <= 12 * one,
            "{name}: {one} elements, {other} for ten times as much"
        );
    }
}
