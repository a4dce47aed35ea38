//! How long the thread that serves pauses for work that grows with the lock table: done all at once, as it once was, and in
//! slices.
//!
//! `cargo run --release -p lockkeeper-server --example pauses -- 1000000`

use std::time::{Duration, Instant};

use lockkeeper_core::{
    AccessChange, Acquire, Batch, CellTime, Command, LockTable, Locks, Quota, SessionId, Token, Wait,
};
use lockkeeper_server::leader::expiry::Expiry;
use lockkeeper_server::leader::orphans::Orphans;

type Failed = Box<dyn std::error::Error>;

/// As `leader/timers.rs` does it.
const SLICE: usize = 10_000;
const COMMANDS_PER_ENTRY: usize = 4_096;
const FREE_LOCKS: usize = 65_536;

fn main() -> Result<(), Failed> {
    let count: usize = std::env::args().nth(1).map_or(Ok(100_000), |word| word.parse())?;
    println!("| what | how many | all at once | the longest slice |");
    println!("|---|---|---|---|");
    let held = table((0..count).flat_map(|number| [open(number), take(number, &lock(number))]))?;
    first_quota(&held)?;
    session_timers(&held);
    reads(&held)?;
    dropped(held);
    orphans(count)
}

fn row(what: &str, count: usize, whole: Duration, longest: Duration) {
    println!("| {what} | {count} | {whole:.2?} | {longest:.2?} |");
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let result = work();
    (began.elapsed(), result)
}

fn lock(number: usize) -> String {
    format!("orders/{number:07}")
}

fn session(number: usize) -> SessionId {
    // The first digits of an id are its place in lists.
    SessionId((number as u128 + 1) << 96)
}

fn open(number: usize) -> Command {
    let owner = format!("host-{number}/worker").into();
    Command::OpenSession { session: session(number), ttl_ms: 60_000, owner, identity: None }
}

fn take(number: usize, name: &str) -> Command {
    Command::Acquire(Acquire::new(session(number), Locks::One(name.into())))
}

fn apply(table: &mut LockTable, commands: Vec<Command>) -> Result<(), Failed> {
    let batch = Batch { now: CellTime(table.applied()), utc_ms: 0, commands };
    let applied = table.apply(table.applied() + 1, &batch)?;
    match applied.answers.into_iter().find_map(Result::err) {
        Some(refusal) => Err(refusal.to_string().into()),
        None => Ok(()),
    }
}

fn table(commands: impl IntoIterator<Item = Command>) -> Result<LockTable, Failed> {
    let mut table = LockTable::new();
    let bytes = Some(1 << 40);
    apply(
        &mut table,
        vec![Command::ChangeAccess { by: "".into(), change: AccessChange::SetStateBytes { bytes } }],
    )?;
    let mut commands = commands.into_iter().peekable();
    while commands.peek().is_some() {
        apply(&mut table, commands.by_ref().take(COMMANDS_PER_ENTRY).collect())?;
    }
    Ok(table)
}

fn first_quota(held: &LockTable) -> Result<(), Failed> {
    let mut table = held.clone();
    let quota = Quota { locks: Some(u64::MAX), ..Quota::default() };
    let change = AccessChange::SetQuota { namespace: "orders".into(), quota };
    let (mut whole, mut longest) = (Duration::ZERO, Duration::ZERO);
    let mut commands = vec![Command::ChangeAccess { by: "".into(), change }];
    while !commands.is_empty() {
        let (took, applied) = timed(|| apply(&mut table, std::mem::take(&mut commands)));
        applied?;
        whole += took;
        longest = longest.max(took);
        if table.has_backlog() {
            commands.push(Command::Tick);
        }
    }
    row("the first quota counts the locks in use", held.counts().locks as usize, whole, longest);
    Ok(())
}

fn session_timers(held: &LockTable) {
    let expiry = Expiry::default();
    let (begin, ()) = timed(|| expiry.take_over(held));
    let mut longest = begin;
    loop {
        let (took, more) = timed(|| expiry.take_over_more(held, SLICE));
        longest = longest.max(took);
        if !more {
            break;
        }
    }
    let expiry = Expiry::default();
    let (whole, _) = timed(|| {
        expiry.take_over(held);
        expiry.take_over_more(held, usize::MAX)
    });
    row("a new leader's session timers", held.counts().sessions as usize, whole, longest);
}

fn reads(held: &LockTable) -> Result<(), Failed> {
    let now = held.now();
    let count = held.counts().sessions as usize;
    let all = |took| row_of_read("the locks that are held the longest", count, took);
    all(timed(|| held.longest_held(now, 100)).0);
    let take_page = || held.lock_views("", "", now, 10).take(1_000).count();
    row_of_read("a page of 1,000 locks", count, timed(take_page).0);
    let owners =
        |limit| held.sessions_after(None).take(limit).filter(|(_, it)| it.owner.contains("no such")).count();
    row_of_read("10,000 sessions by owner", count, timed(|| owners(10_000)).0);

    let mut contended = held.clone();
    let some = count.min(100_000);
    for number in 0..some.div_ceil(COMMANDS_PER_ENTRY) {
        let first = number * COMMANDS_PER_ENTRY;
        let wait = |number: usize| {
            let request = Acquire::new(session(0), Locks::One(lock(number).into()));
            Command::Acquire(Acquire { wait: Wait::Forever, ..request })
        };
        let commands = (first.max(1)..some.min(first + COMMANDS_PER_ENTRY)).map(wait).collect();
        apply(&mut contended, commands)?;
    }
    row_of_read("the locks that most wait for", some, timed(|| contended.most_contended(now, 100)).0);
    row_of_read("the graph of all waits", some, timed(|| contended.wait_graph(None, now)).0);

    let used = |number: usize| {
        let name = lock(number);
        let token = Token(number as u64 + 1);
        [take(0, &name), Command::Release { session: session(0), lock: name.into(), token, forget: true }]
    };
    let commands = [open(0)].into_iter().chain((0..FREE_LOCKS).flat_map(used)).chain([take(0, "z")]);
    let free = table(commands)?;
    row_of_read(
        "a page of locks behind free ones",
        FREE_LOCKS,
        timed(|| free.lock_views("", "", now, 10).take(1_000).count()).0,
    );
    Ok(())
}

fn row_of_read(what: &str, count: usize, took: Duration) {
    println!("| {what} | {count} | {took:.2?} | |");
}

fn dropped(held: LockTable) {
    let count = held.counts().locks as usize;
    // Another one like it, that shares nothing with it.
    let Ok(other) = table((0..count).flat_map(|number| [open(number), take(number, &lock(number))])) else {
        return;
    };
    let (whole, ()) = timed(|| drop(held));
    let (longest, thread) = timed(|| std::thread::spawn(move || drop(other)));
    drop(thread.join());
    row("the table that a snapshot replaces is dropped", count, whole, longest);
}

fn orphans(count: usize) -> Result<(), Failed> {
    let waits = |number: usize| {
        let request = Some(format!("~1-{number:x}").into());
        let acquire = Acquire::new(session(0), Locks::One(lock(number / 9_000).into()));
        Command::Acquire(Acquire { wait: Wait::Forever, request, ..acquire })
    };
    let sessions = count.div_ceil(90_000) + 1;
    let waits = move |number: usize| match waits(number) {
        Command::Acquire(request) => {
            Command::Acquire(Acquire { session: session(1 + number / 90_000), ..request })
        }
        other => other,
    };
    let held = (0..=count / 9_000).map(|number| take(0, &lock(number)));
    let table = table((0..=sessions).map(open).chain(held).chain((0..count).map(waits)))?;
    let orphans = Orphans::default();
    orphans.take_over(&table);
    let mut longest = Duration::ZERO;
    loop {
        let (took, (_, more)) = timed(|| orphans.scan_more(&table, SLICE));
        longest = longest.max(took);
        if !more {
            break;
        }
    }
    orphans.take_over(&table);
    let (whole, _) = timed(|| orphans.scan_more(&table, usize::MAX));
    row("a new leader's waiting requests without a caller", count, whole, longest);
    Ok(())
}
