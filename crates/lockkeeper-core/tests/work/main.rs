//! One entry does a bounded amount of work (S11), whatever the table holds: the known worst cases, by step counts. Times are
//! printed for people (`cargo test --release -p lockkeeper-core --test work -- --nocapture`).

#![allow(clippy::unwrap_used)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "times are printed, nothing depends on them"
)]

mod cell;
mod full_entries;
#[cfg(feature = "mutations")]
mod generated;

use lockkeeper_core::{
    Acquire, Command, Effect, Locks, Policy, Refusal, Reply, Restore, SessionId, Ticket, Token, Waiting,
};

use self::cell::{Cell, acquire, open, scoped, shared, waiting};

/// 250 scopes share one lock, two long queues, and all scopes want the other lock in the same entry.
#[test]
fn many_deadlock_searches_in_one_entry() {
    let mut cell = Cell::default();
    cell.apply((1..=3).map(open).collect());
    cell.apply_all((0..250).map(|scope| Command::Acquire(scoped(shared(acquire(1, "L1")), scope))));
    cell.apply(vec![Command::Acquire(acquire(2, "L2"))]);
    cell.apply_all((0..9_700).map(|_| Command::Acquire(waiting(3, "L1"))));
    cell.apply_all((0..9_700).map(|_| Command::Acquire(waiting(3, "L2"))));
    cell.reset();
    let wanted = (0..250).map(|scope| Command::Acquire(scoped(waiting(1, "L2"), scope))).collect();
    let mut answers = cell.apply(wanted).answers;
    answers.retain(|answer| !matches!(answer, Err(Refusal::Limit(_)) | Ok(Reply::Queued { .. })));
    assert_eq!(answers, [], "each is queued, or refused because the search is too expensive");
    cell.print("250 searches");
    cell.drain();
    cell.print("and what was deferred");
    // Other requests are still served.
    let free = cell.apply(vec![Command::Acquire(acquire(1, "other"))]);
    assert!(matches!(free.answers[0], Ok(Reply::Granted(_))));
}

/// A search that was deferred to a later entry finds the deadlock.
#[test]
fn deferred_search_finds_the_deadlock() {
    let mut cell = Cell::default();
    cell.apply((1..=3).map(open).collect());
    // Two scopes hold a lock each, behind queues that are long enough to make searches expensive, not too expensive.
    cell.apply(vec![
        Command::Acquire(scoped(acquire(1, "A"), 1)),
        Command::Acquire(scoped(acquire(1, "B"), 2)),
        Command::Acquire(scoped(waiting(1, "B"), 1)),
    ]);
    cell.apply((0..1_000).map(|_| Command::Acquire(waiting(3, "A"))).collect());
    cell.apply_all((0..250).map(|scope| Command::Acquire(scoped(shared(acquire(2, "S")), 100 + scope))));
    cell.apply(vec![Command::Acquire(acquire(3, "T"))]);
    cell.apply_all((0..3_000).map(|_| Command::Acquire(waiting(3, "S"))));
    cell.apply_all((0..3_000).map(|_| Command::Acquire(waiting(3, "T"))));
    let mut commands: Vec<Command> =
        (0..10).map(|scope| Command::Acquire(scoped(waiting(2, "T"), 100 + scope))).collect();
    commands.push(Command::Acquire(scoped(waiting(1, "A"), 2)));
    let applied = cell.apply(commands);
    let Ok(Reply::Queued { ticket }) = applied.answers[10] else { panic!("{:?}", applied.answers[10]) };
    assert!(cell.table.has_backlog());
    // A snapshot keeps the deferred search.
    let mut restore = Restore::new();
    cell.table.snapshot().for_each(|chunk| restore.push(&chunk).unwrap());
    assert_eq!(restore.finish().unwrap(), cell.table);
    let ended =
        cell.drain().into_iter().flat_map(|applied| applied.effects).find_map(|effect| match effect {
            Effect::Ended { ticket: of, refusal, .. } if of == ticket => Some(refusal),
            _ => None,
        });
    assert!(matches!(ended, Some(Refusal::Deadlock { .. })), "{ended:?}");
}

/// One entry frees five locks, each with 10,000 waiting readers.
#[test]
fn many_readers_are_granted_over_several_entries_without_overtaking() {
    const READERS: usize = 10_000;
    let mut cell = Cell::default();
    cell.apply((1..=3).map(open).collect());
    let locks: Vec<String> = (0..5).map(|number| format!("lock-{number}")).collect();
    let held = cell.apply(locks.iter().map(|lock| Command::Acquire(acquire(1, lock))).collect());
    for lock in &locks {
        cell.apply_all((0..READERS).map(|_| Command::Acquire(shared(waiting(2, lock)))));
    }
    cell.reset();
    let tokens: Vec<Token> = held
        .answers
        .iter()
        .map(|answer| match answer {
            Ok(Reply::Granted(grant)) => grant.token,
            other => panic!("{other:?}"),
        })
        .collect();
    let releases = locks.iter().zip(&tokens).map(|(lock, token)| Command::Release {
        session: SessionId(1),
        lock: lock.into(),
        token: *token,
        forget: true,
    });
    let mut all = vec![cell.apply(releases.collect())];
    assert!(cell.table.has_backlog());
    // New requests queue behind the waiting ones.
    let late = cell.apply(vec![
        Command::Acquire(shared(acquire(3, &locks[4]))),
        Command::Acquire(shared(waiting(3, &locks[4]))),
    ]);
    assert!(matches!(late.answers[0], Err(Refusal::Busy { .. })), "{:?}", late.answers[0]);
    assert!(matches!(late.answers[1], Ok(Reply::Queued { .. })), "{:?}", late.answers[1]);
    all.push(late);
    all.extend(cell.drain());
    cell.print("50,000 readers");
    for lock in &locks {
        let tickets: Vec<_> = all
            .iter()
            .flat_map(|applied| &applied.effects)
            .filter_map(|effect| match effect {
                Effect::Granted { ticket, grant, .. } if grant.locks.as_slice()[0] == lock.as_str() => {
                    Some(*ticket)
                }
                _ => None,
            })
            .collect();
        assert!(tickets.len() >= READERS && tickets.is_sorted(), "{} of {lock}", tickets.len());
    }
    assert_eq!(cell.table.counts().waiting, 0);
}

#[test]
fn lock_with_many_holders_is_force_released_over_several_entries() {
    const HOLDERS: u32 = 20_000;
    let mut cell = Cell::default();
    cell.apply((1..=2).map(open).collect());
    cell.apply_all((0..HOLDERS).map(|_| Command::Acquire(shared(acquire(1, "L")))));
    cell.apply(vec![Command::Acquire(waiting(2, "L"))]);
    cell.reset();
    let force = Command::ForceRelease { lock: "L".into(), reason: "stuck".into(), by: "".into() };
    let applied = cell.apply(vec![force]);
    let Ok(Reply::Forced { released: HOLDERS, last_token }) = applied.answers[0] else {
        panic!("{:?}", applied.answers)
    };
    assert_eq!(last_token, Token(u64::from(HOLDERS) + 1), "all of them are stale at once");
    cell.drain();
    cell.print("20,000 holders");
    assert_eq!(cell.table.counts().grants, 1, "the waiting request holds it");
    let events: Vec<_> = cell.table.history(&"L".into()).take(2).collect();
    assert_eq!(events[1].reason, "stuck", "{events:?}");
}

/// An older scope takes a lock from many younger ones.
#[test]
fn wounding_is_bounded() {
    let mut cell = Cell::default();
    cell.apply((1..=3).map(open).collect());
    let wound = |request| Acquire { policy: Policy::WoundWait, ..request };
    cell.apply(vec![Command::Acquire(wound(scoped(acquire(1, "mine"), 0)))]);
    for scope in 1..=2_000 {
        let held = (0..8).map(|number| {
            Command::Acquire(wound(scoped(acquire(2, &format!("held-{scope}-{number}")), scope)))
        });
        cell.apply(held.chain([Command::Acquire(wound(scoped(shared(acquire(2, "L")), scope)))]).collect());
    }
    cell.reset();
    let mut tries = 0;
    loop {
        tries += 1;
        let answer = cell.apply(vec![Command::Acquire(wound(scoped(waiting(1, "L"), 0)))]).answers.remove(0);
        cell.drain();
        match answer {
            Err(Refusal::Limit(_)) => assert!(tries < 100, "no progress"),
            Ok(Reply::Granted(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    cell.print("2,000 scopes wounded");
    assert_eq!(cell.table.counts().grants, 2);
}

/// Expires so many sessions with a lock and 20 refused requests each. Returns the entries and steps that it takes, and the
/// entries until the last lock is free.
fn mass_expiry(sessions: u128) -> (u64, u64, u64) {
    let mut cell = Cell::default();
    cell.apply_all((1..=sessions).map(open));
    cell.apply_all(
        (1..=sessions).map(|session| Command::Acquire(acquire(session, &format!("lock-{session}")))),
    );
    for number in 0..20 {
        cell.apply_all((1..=sessions).map(|session| {
            let request = Some(format!("r{number}").into());
            Command::Acquire(Acquire { request, ..acquire(session, "lock-1") })
        }));
    }
    cell.reset();
    let table = cell.table.clone();
    cell.apply_all((1..=sessions).map(|id| Command::ExpireSession {
        session: SessionId(id),
        version: table.session(SessionId(id)).unwrap().version,
    }));
    while cell.table.counts().grants > 0 {
        cell.apply(vec![Command::Tick]);
    }
    let entries_until_free = cell.entries;
    cell.drain();
    cell.print(&format!("{sessions} sessions expired"));
    assert_eq!(cell.table.counts().locks, 0);
    (cell.entries, cell.steps, entries_until_free)
}

#[test]
fn mass_expiry_is_linear_and_frees_locks_before_anything_else() {
    let (entries, steps, until_free) = mass_expiry(3_000);
    let (entries_10, steps_10, until_free_10) = mass_expiry(30_000);
    assert!(steps_10 <= 12 * steps, "{steps} and {steps_10} steps");
    assert!(entries_10 <= 12 * entries.max(4), "{entries} and {entries_10} entries");
    assert!(until_free_10 <= 12 * until_free, "{until_free} and {until_free_10} entries");
    assert!(2 * until_free_10 < entries_10, "answers are forgotten after the locks are free");
}

/// Mutation test: the same check fails if answers are forgotten first.
#[cfg(feature = "mutations")]
#[test]
fn answers_that_are_forgotten_before_locks_are_free_are_detected() {
    use lockkeeper_core::mutation::{self, Mutation};

    mutation::put_back(Some(Mutation::ReapAnswersFirst));
    let (entries, _, until_free) = mass_expiry(3_000);
    mutation::put_back(None);
    assert!(2 * until_free >= entries, "locks are free after {until_free} of {entries} entries");
}

/// The first quota of a cell counts usage in slices; changes meanwhile are counted too.
#[test]
fn first_quota_counts_usage_in_slices() {
    const LOCKS: u64 = 50_000;
    let mut cell = Cell::default();
    cell.apply((1..=2).map(open).collect());
    let name = |number: u64| format!("{}/{number}", ["a", "m", "z"][number as usize % 3]);
    cell.apply_all((0..LOCKS).map(|number| Command::Acquire(acquire(1, &name(number)))));
    cell.reset();
    let quota = lockkeeper_core::Quota { locks: Some(1_000_000), ..Default::default() };
    let change = lockkeeper_core::AccessChange::SetQuota { namespace: "a".into(), quota };
    cell.apply(vec![Command::ChangeAccess { by: "root".into(), change }]);
    let mut more = 0;
    while cell.table.has_backlog() {
        // Before and after the current position of counting.
        cell.apply(
            ["a", "z"].map(|space| Command::Acquire(acquire(2, &format!("{space}/new-{more}")))).into(),
        );
        let mut restore = Restore::new();
        cell.table.snapshot().for_each(|chunk| restore.push(&chunk).unwrap());
        assert_eq!(restore.finish().unwrap(), cell.table);
        more += 1;
    }
    cell.print("first quota with 50,000 locks");
    assert!(more > 1, "it took more than one entry");
    let usage: u64 = ["a", "m", "z"].map(|space| cell.table.access().usage_of(space).locks).iter().sum();
    assert_eq!(usage, LOCKS + 2 * more);
}

/// Queues `count` requests for a hundred locks each. Each waits because session 1 holds the first of its locks.
fn wide_requests(cell: &mut Cell, count: usize) {
    cell.apply((1..=2).map(open).collect());
    let first = |number| format!("wide-{number:04}-000");
    let request = |number| {
        let names = (0..100).map(|lock| format!("wide-{number:04}-{lock:03}").into());
        let request = Some(format!("r{number}").into());
        Command::Acquire(Acquire { request, locks: Locks::many(names), ..waiting(2, "") })
    };
    cell.apply_all((0..count).map(|number| Command::Acquire(acquire(1, &first(number)))));
    cell.apply_all((0..count).map(request));
    assert_eq!(cell.table.counts().waiting, count as u64);
    cell.reset();
}

/// Each release of one lock admits a request for a hundred.
#[test]
fn requests_for_many_locks_are_granted_over_several_entries() {
    const REQUESTS: usize = 600;
    let mut cell = Cell::default();
    wide_requests(&mut cell, REQUESTS);
    let session = SessionId(1);
    let grants: Vec<_> = cell.table.grants_of(session).collect();
    let release = |grant: lockkeeper_core::Grant| Command::Release {
        session,
        lock: grant.locks.as_slice()[0].clone(),
        token: grant.token,
        forget: true,
    };
    let released = cell.apply(grants.into_iter().map(release).collect());
    assert!(released.answers.iter().all(Result::is_ok));
    assert!(cell.table.has_backlog());
    cell.drain();
    cell.print("600 requests for a hundred locks each");
    assert_eq!(cell.table.counts().grants, REQUESTS as u64);
}

/// Cancels are answered at once. The requests for a hundred locks leave their queues over several entries, and are not
/// granted meanwhile.
#[test]
fn requests_for_many_locks_are_cancelled_over_several_entries() {
    const REQUESTS: usize = 600;
    let mut cell = Cell::default();
    wide_requests(&mut cell, REQUESTS);
    let last = cell.table.last_ticket().0;
    let session = SessionId(2);
    let cancel = |back| Command::Cancel { session, what: Waiting::Ticket(Ticket(last - back)) };
    let cancelled = cell.apply((0..REQUESTS as u64).map(cancel).collect());
    assert!(cancelled.answers.iter().all(|answer| *answer == Ok(Reply::Done)));
    assert!(cell.table.has_backlog());
    let mut restore = Restore::new();
    cell.table.snapshot().for_each(|chunk| restore.push(&chunk).unwrap());
    assert_eq!(restore.finish().unwrap(), cell.table);
    // The locks that they wait for become free.
    let version = cell.table.session(SessionId(1)).unwrap().version;
    let mut all =
        vec![cancelled, cell.apply(vec![Command::ExpireSession { session: SessionId(1), version }])];
    all.extend(cell.drain());
    cell.print("600 requests for a hundred locks each, cancelled");
    let effects: Vec<_> = all.iter().flat_map(|applied| &applied.effects).collect();
    assert!(
        !effects.iter().any(|effect| matches!(effect, Effect::Granted { .. })),
        "cancelled requests are not granted"
    );
    let ended = |effect: &&&Effect| matches!(effect, Effect::Ended { refusal: Refusal::Cancelled, .. });
    assert_eq!(effects.iter().filter(ended).count(), REQUESTS);
    assert_eq!((cell.table.counts().waiting, cell.table.counts().locks), (0, 0));
}

/// The same for cancelled grants.
#[test]
fn grants_of_many_locks_are_cancelled_over_several_entries() {
    const REQUESTS: usize = 600;
    let mut cell = Cell::default();
    wide_requests(&mut cell, REQUESTS);
    cell.apply(vec![Command::CloseSession { session: SessionId(1) }]);
    cell.drain();
    assert_eq!(cell.table.counts().grants, REQUESTS as u64);
    cell.reset();
    let session = SessionId(2);
    let cancel = |number| Command::Cancel { session, what: Waiting::Request(format!("r{number}").into()) };
    cell.apply((0..REQUESTS).map(cancel).collect());
    assert!(cell.table.has_backlog());
    cell.drain();
    cell.print("600 grants of a hundred locks each, cancelled");
    assert_eq!((cell.table.counts().grants, cell.table.counts().locks), (0, 0));
}

/// Searches for a missing candidate in a long queue spend the budget of the entry.
#[test]
fn search_for_candidates_is_bounded() {
    let mut cell = Cell::default();
    cell.apply((1..=2).map(open).collect());
    cell.apply(vec![Command::Acquire(acquire(1, "L"))]);
    cell.apply_all((0..10_000).map(|_| Command::Acquire(waiting(2, "L"))));
    cell.reset();
    let hand_over = || Command::HandOver {
        session: SessionId(1),
        lock: "L".into(),
        token: Token(1),
        to: "absent".into(),
    };
    let answers = cell.apply((0..1_000).map(|_| hand_over()).collect()).answers;
    assert!(answers.iter().all(|answer| matches!(answer, Err(Refusal::Limit(_)))), "{answers:?}");
    cell.print("1,000 hand-overs to nobody in a queue of 10,000");
    let free = cell.apply(vec![Command::Acquire(acquire(1, "other"))]);
    assert!(matches!(free.answers[0], Ok(Reply::Granted(_))));
}
