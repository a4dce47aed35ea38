//! Every view is bounded, and reading a list page by page has linear cost: ten times as much in the table costs at most
//! twelve times as much. Cost is counted in elements of the answers and in records that reads visit. The tests of
//! `lockkeeper-core` have tables on which single reads would be expensive.

use std::sync::Mutex;

use lockkeeper_core::{
    AccessChange, Acquire, Batch, CellTime, Command, LockTable, Locks, Right, Rights, SessionId, Wait, limits,
};
use serde::Serialize;
use serde_json::Value;

use lockkeeper_api::session::SessionFilter;

use super::SESSIONS_SCANNED_MAX;
use crate::api::View;
use crate::api::page_room::PAGE_BYTES_MAX;
use crate::leader::expiry::Expiry;
use crate::metrics::hourly_stats::HourlyStats;

const FEW: u64 = 300;

/// Builds a table with `count` each of sessions, locks, elections, waiters and forced releases.
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
        // Each session waits for the one before, and all wait for one lock.
        run(take(number, &format!("lock/{:05}", (number - 1).max(1)), Wait::Forever));
        run(take(number, "crowded", Wait::Forever));
        // One lock with a long history.
        run(Command::ForceRelease { lock: "busy".into(), reason: "test".into(), by: "ada".into() });
        run(take(number, "busy", Wait::No));
        let key = format!("value/{number:05}");
        run(Command::PutValue { key: key.into(), value: vec![1].into(), fence: None, if_version: None });
        let (identity, prefix) = (format!("identity-{number}").into(), format!("team-{number}/").into());
        let grant = AccessChange::Grant { identity, prefix, rights: Rights::of([Right::Acquire]) };
        run(Command::ChangeAccess { by: "ada".into(), change: grant });
    }
    Mutex::new(table)
}

fn view(table: &Mutex<LockTable>) -> View<'_> {
    View { table: table.lock().unwrap(), now: CellTime(1_000_000) }
}

/// Counts the JSON values in a view.
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

type Measure = fn(&View<'_>) -> usize;

/// Views that consist of one page, each with its bound.
const VIEWS: [(&str, Measure, usize); 9] = [
    ("history", |view| elements(&view.history(&"busy".into(), 0)), 2_000),
    ("audit", |view| elements(&view.audit(0)), 3_000),
    ("top", |view| elements(&view.top(&HourlyStats::default(), usize::MAX)), 2_000),
    ("graph", |view| elements(&view.graph(None)), 12_000),
    ("graph of a lock", |view| elements(&view.graph(Some(&"crowded".into()))), 12_000),
    ("sessions", |view| elements(&view.sessions(&Expiry::default(), &SessionFilter::default())), 1_000),
    ("locks", |view| elements(&view.lock_list("", "")), 3_000),
    ("a lock", |view| elements(&view.lock_in_full(&"crowded".into())), 5_000),
    ("elections", |view| elements(&view.elections("")), 2_000),
];

/// Lists, read page by page to their end.
const LISTS: [(&str, Measure); 3] = [
    ("sessions", |view| {
        let (mut sum, mut wanted) = (0, SessionFilter::default());
        loop {
            let page = serde_json::to_value(view.sessions(&Expiry::default(), &wanted)).unwrap();
            sum += elements(&page);
            let last = page["sessions"].as_array().unwrap().last().map(|session| session["session"].clone());
            match (last, page["more"] == true) {
                (Some(last), true) => {
                    wanted = SessionFilter::new(last.as_str().unwrap(), String::new(), 0).unwrap()
                }
                _ => return sum,
            }
        }
    }),
    ("locks", |view| {
        let (mut sum, mut after) = (0, String::new());
        loop {
            let page = serde_json::to_value(view.lock_list("", &after)).unwrap();
            sum += elements(&page);
            match page["more"] == true {
                true => {
                    after = page["locks"].as_array().unwrap().last().unwrap()["lock"].as_str().unwrap().into()
                }
                false => return sum,
            }
        }
    }),
    ("elections", |view| {
        let (mut sum, mut after) = (0, String::new());
        loop {
            let page = serde_json::to_value(view.elections(&after)).unwrap();
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
fn views_are_bounded_and_lists_have_linear_cost() {
    let (few, many) = (table(FEW), table(10 * FEW));
    for (name, measure, bound) in VIEWS {
        let (one, other) = (measure(&view(&few)), measure(&view(&many)));
        println!("{name}: {one} and {other} elements");
        assert!(one > 20, "{name}: {one} elements");
        assert!(other <= bound && other <= 12 * one, "{name}: {one} elements, {other} for ten times as much");
    }
    for (name, measure) in LISTS {
        let (one, other) = (measure(&view(&few)), measure(&view(&many)));
        println!("all {name}: {one} and {other} elements");
        assert!(
            other >= 5 * one && other <= 12 * one,
            "{name}: {one} elements, {other} for ten times as much"
        );
    }
}

/// Counts the records that reads visit. Needs a feature of `lockkeeper-core` for tests.
#[cfg(feature = "simulation")]
mod records {
    use lockkeeper_api::Request;
    use lockkeeper_core::{Token, reads};

    use super::*;

    /// Most records that a read visits.
    const RECORDS_MAX: u64 = 12_000;

    /// Names the requests of each variant that is answered from the table, and the other variants. Does not compile while
    /// one is missing.
    macro_rules! reads {
        (table { $($read:ident => $requests:expr,)* } others { $($other:ident,)* }) => {
            fn of_reads() -> Vec<(&'static str, Vec<Request>)> {
                vec![$((stringify!($read), $requests),)*]
            }

            #[expect(dead_code, reason = "it only has to compile")]
            fn every_read_has_requests(it: &Request) {
                match it {
                    $(Request::$read { .. } => {})*
                    $(Request::$other { .. } => {})*
                }
            }
        };
    }

    reads! {
        table {
            Lock => vec![Request::Lock("crowded".into()), Request::Lock("lock/00001".into())],
            Locks => vec![
                locks("", "", 0),
                locks("", "", usize::MAX),
                locks("lock/", "lock/00100", 10),
                locks("election/", "", 10),
            ],
            Token => vec![Request::Token { lock: "crowded".into(), token: Token(1) }],
            Value => vec![Request::Value("value/00001".to_owned())],
            Election => vec![Request::Election("election/00001".into()), Request::Election("crowded".into())],
            History => vec![Request::History { lock: "busy".into(), limit: 0 }],
            Audit => vec![Request::Audit { limit: 0 }, Request::Audit { limit: usize::MAX }],
            Top => vec![Request::Top { limit: 0 }, Request::Top { limit: usize::MAX }],
            Graph => vec![Request::Graph(None), Request::Graph(Some("crowded".into()))],
            Sessions => vec![sessions("", 0), sessions("absent", 5), sessions("", usize::MAX)],
            Access => vec![Request::Access],
        }
        others {
            // Commands and steps of several commands: `lockkeeper-core/tests/complexity`.
            Command,
            OpenSession,
            ChangeAccess,
            EnableAccess,
            CreateToken,
            AddMember,
            RemoveMember,
            // They read nothing that grows with the table.
            KeepAlive,
            Status,
            Members,
            Metrics,
            // Built from `Top`, with fewer locks.
            Health,
            // A copy of the table, whose records are visited on another thread.
            Snapshot,
        }
    }

    fn locks(prefix: &str, after: &str, limit: usize) -> Request {
        Request::Locks { prefix: prefix.to_owned(), after: after.to_owned(), limit }
    }

    fn sessions(owner: &str, limit: usize) -> Request {
        Request::Sessions(SessionFilter::new("", owner.to_owned(), limit).unwrap())
    }

    fn records(table: &Mutex<LockTable>, request: Request) -> u64 {
        let view = view(table);
        reads::take();
        match request {
            Request::Value(key) => assert!(view.table.value(&key).is_some()),
            read => drop(view.read(read, &Expiry::default(), &HourlyStats::default(), false).unwrap()),
        }
        reads::take()
    }

    fn assert_bounded(name: &str, one: u64, other: u64) {
        println!("{name}: {one} and {other} records");
        assert!(one > 0, "{name}: nothing was counted");
        assert!(
            other <= RECORDS_MAX && other <= 12 * one,
            "{name}: {one} records, {other} for ten times as much"
        );
    }

    #[test]
    fn reads_visit_a_bounded_number_of_records() {
        let (few, many) = (table(FEW), table(10 * FEW));
        for (name, requests) in of_reads() {
            for request in requests {
                let (one, other) = (records(&few, request.clone()), records(&many, request.clone()));
                assert_bounded(&format!("{name} {request:?}"), one, other);
            }
        }
    }

    /// The views of the console, and whole lists.
    #[test]
    fn views_visit_a_bounded_number_of_records() {
        let (few, many) = (table(FEW), table(10 * FEW));
        let count = |table: &Mutex<LockTable>, measure: Measure| {
            reads::take();
            measure(&view(table));
            reads::take()
        };
        for (name, measure, _) in VIEWS {
            assert_bounded(name, count(&few, measure), count(&many, measure));
        }
        for (name, measure) in LISTS {
            let (one, other) = (count(&few, measure), count(&many, measure));
            println!("all {name}: {one} and {other} records");
            assert!(one > 0 && other <= 12 * one, "{name}: {one} records, {other} for ten times as much");
        }
    }
}

#[test]
fn a_page_scans_a_bounded_number_of_sessions_and_the_next_one_continues_there() {
    let open = |number: usize| Command::OpenSession {
        session: SessionId((number as u128) << 96),
        ttl_ms: 1_000,
        owner: if number == 2 * SESSIONS_SCANNED_MAX { "wanted".into() } else { "other".into() },
        identity: None,
    };
    let mut table = LockTable::new();
    let commands = (1..=3 * SESSIONS_SCANNED_MAX).map(open).collect();
    table.apply(1, &Batch { now: CellTime(1), utc_ms: 0, commands }).expect("the first entry");
    let table = Mutex::new(table);
    let (view, expiry) = (view(&table), Expiry::default());
    let (mut after, mut pages) = (String::new(), Vec::new());
    loop {
        let filter = SessionFilter::new(&after, "wanted".to_owned(), 5).expect("a place in the list");
        let page = view.sessions(&expiry, &filter);
        pages.push(page.sessions.len());
        assert_eq!(page.more, page.next.is_some());
        let Some(next) = page.next else { break };
        after = next;
    }
    assert_eq!(pages, [0, 1, 0]);
}

fn json_bytes(view: &impl Serialize) -> usize {
    serde_json::to_string(view).unwrap().len()
}

/// Elections with candidates whose owners, scopes and values are as long as possible, and take six times as much in JSON.
#[test]
fn views_of_the_longest_texts_have_a_bounded_size() {
    const ELECTIONS: usize = 60;
    const CANDIDATES: u64 = 300;
    /// The history that the view of one lock has besides.
    const HISTORY_BYTES: usize = 1 << 20;
    let mut table = LockTable::new();
    let mut run = |command: Command| {
        let batch = Batch { now: table.now(), utc_ms: 0, commands: vec![command] };
        let applied = table.apply(table.applied() + 1, &batch).unwrap();
        assert!(applied.answers[0].is_ok(), "{:?}", applied.answers);
    };
    let text = |bytes: usize| "\u{1}".repeat(bytes);
    let session = SessionId(1 << 96);
    let owner = text(limits::OWNER_BYTES_MAX).into();
    run(Command::OpenSession { session, ttl_ms: 60_000, owner, identity: None });
    for number in 0..ELECTIONS {
        let candidates = if number == 0 { CANDIDATES } else { 6 };
        for candidate in 0..candidates {
            run(Command::Acquire(Acquire {
                wait: if candidate == 0 { Wait::No } else { Wait::Forever },
                value: Some(text(limits::CANDIDATE_BYTES_MAX).into()),
                request: Some(format!("r-{number}-{candidate}").into()),
                ..Acquire::new(session, Locks::One(format!("election/{number:02}").into()))
            }));
        }
    }
    let table = Mutex::new(table);
    let whole = {
        let lock = view(&table).table.lock_view(&"election/00".into(), CellTime(0), usize::MAX);
        json_bytes(&lockkeeper_api::lock::LockState::from(lock))
    };
    assert!(whole > 6 * PAGE_BYTES_MAX, "{whole}");
    // Each view holds the table's mutex until its statement ends.
    let list = json_bytes(&view(&table).lock_list("", ""));
    let elections = json_bytes(&view(&table).elections(""));
    let lock = json_bytes(&view(&table).lock_in_full(&"election/00".into()));
    for (what, bytes) in [("list", list), ("elections", elections), ("lock", lock)] {
        assert!(
            (PAGE_BYTES_MAX / 2..PAGE_BYTES_MAX + HISTORY_BYTES).contains(&bytes),
            "{what}: {bytes} bytes"
        );
    }
}
