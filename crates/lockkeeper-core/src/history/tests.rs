//! What the history keeps, what it forgets, and that snapshots include it.

use super::*;
use crate::{Acquire, Batch, Command, LockTable, Locks, Restore, Wait};

const ANNA: SessionId = SessionId(0xa << 124);
const BERT: SessionId = SessionId(0xb << 124);
const UTC_MS: u64 = 1_800_000_000_000;

fn table() -> LockTable {
    let mut table = LockTable::new();
    let open = |session, owner: &str| Command::OpenSession {
        session,
        ttl_ms: 10_000,
        owner: owner.into(),
        identity: None,
    };
    apply(&mut table, vec![open(ANNA, "anna"), open(BERT, "bert")]);
    table
}

/// Applies an entry one second after the previous one.
fn apply(table: &mut LockTable, commands: Vec<Command>) {
    let now = CellTime(table.applied() * 1_000_000);
    table.apply(table.applied() + 1, &Batch { now, utc_ms: UTC_MS, commands }).expect("the next entry");
}

fn acquire(session: SessionId, lock: &str, wait: Wait) -> Command {
    Command::Acquire(Acquire { wait, ..Acquire::new(session, Locks::One(lock.into())) })
}

fn release(session: SessionId, lock: &str, token: u64) -> Command {
    Command::Release { session, lock: lock.into(), token: Token(token), forget: false }
}

fn events_of(table: &LockTable, lock: &str) -> Vec<String> {
    let tell = |event: &LockEvent| {
        let reason = if event.reason.is_empty() { String::new() } else { format!(" ({})", event.reason) };
        let (word, owner) = (event.kind.as_str(), &event.owner);
        format!(
            "{} {word} {owner} {} after {} ms{reason}",
            event.at.0 / 1_000_000,
            event.token,
            event.took_ms
        )
    };
    let mut story: Vec<String> = table.history(&lock.into()).map(tell).collect();
    story.reverse();
    story
}

#[test]
fn events_of_one_entry_have_the_owner_at_their_time() {
    let mut table = table();
    let open = |owner: &str| Command::OpenSession {
        session: ANNA,
        ttl_ms: 10_000,
        owner: owner.into(),
        identity: None,
    };
    // A session that reuses the id within the entry has another owner. (The first has no remains, or the id would be refused.)
    let commands = vec![
        acquire(ANNA, "job", Wait::No),
        release(ANNA, "job", 1),
        Command::CloseSession { session: ANNA },
        open("anna's heir"),
        acquire(ANNA, "job", Wait::No),
        acquire(BERT, "other", Wait::No),
        Command::CloseSession { session: BERT },
    ];
    apply(&mut table, commands);
    let story =
        ["1 granted anna 1 after 0 ms", "1 released anna 1 after 0 ms", "1 granted anna's heir 2 after 0 ms"];
    assert_eq!(events_of(&table, "job"), story);
    assert_eq!(
        events_of(&table, "other"),
        ["1 granted bert 3 after 0 ms", "1 session_closed bert 3 after 0 ms"],
        "what is freed later in the entry still has its owner"
    );
}

fn restored(table: &LockTable) -> LockTable {
    let mut restore = Restore::new();
    table.snapshot().for_each(|chunk| restore.push(&chunk).expect("whole chunks"));
    restore.finish().expect("a whole table")
}

#[test]
fn grants_and_their_ends_are_recorded_in_order() {
    let mut table = table();
    apply(&mut table, vec![acquire(ANNA, "job", Wait::No), acquire(BERT, "job", Wait::Forever)]);
    apply(&mut table, vec![release(ANNA, "job", 1)]);
    let version = table.session(BERT).expect("it lives").version;
    apply(&mut table, vec![Command::ExpireSession { session: BERT, version }]);
    let story = [
        "1 granted anna 1 after 0 ms",
        "2 released anna 1 after 1000 ms",
        "2 granted bert 2 after 1000 ms",
        "3 session_expired bert 2 after 1000 ms",
    ];
    assert_eq!(events_of(&table, "job"), story);
    assert_eq!(restored(&table), table);
    assert_eq!(events_of(&restored(&table), "job"), story);
    assert!(table.history.owners_of_ended_sessions.is_empty());
}

#[test]
fn retry_is_not_recorded_as_a_second_grant() {
    let mut table = table();
    let request = Command::Acquire(Acquire {
        request: Some("r".into()),
        ..Acquire::new(ANNA, Locks::many(["a".into(), "b".into()]))
    });
    apply(&mut table, vec![request.clone(), request.clone()]);
    apply(&mut table, vec![request]);
    assert_eq!(events_of(&table, "a"), ["1 granted anna 1 after 0 ms"]);
    assert_eq!(events_of(&table, "b"), ["1 granted anna 1 after 0 ms"]);
}

#[test]
fn force_release_is_recorded_as_event_and_as_action() {
    let mut table = table();
    let force =
        |reason: &str| Command::ForceRelease { lock: "job".into(), reason: reason.into(), by: "".into() };
    apply(&mut table, vec![acquire(ANNA, "job", Wait::No), force("it hangs"), force("again")]);
    assert_eq!(
        events_of(&table, "job"),
        ["1 granted anna 1 after 0 ms", "1 forced anna 1 after 0 ms (it hangs)"]
    );
    let acts: Vec<(u64, &ActionKind)> = table.acts().map(|act| (act.number, &act.kind)).collect();
    let kind = |reason: &str, released, token| ActionKind::ForceRelease {
        by: "".into(),
        lock: "job".into(),
        reason: reason.into(),
        released,
        last_token: Token(token),
    };
    assert_eq!(acts, [(1, &kind("again", 0, 3)), (0, &kind("it hangs", 1, 2))]);
}

#[test]
fn leaders_members_and_restores_are_recorded() {
    let mut table = table();
    table.note_leader(3, 2);
    table.note_members("1 and 2");
    table.raise_to_floor(Token(1_000)).expect("there are more");
    table.note_restored();
    assert!(table.next_entry_due().is_some(), "an entry with UTC is needed");
    apply(&mut table, vec![Command::CloseSession { session: ANNA }, Command::CloseSession { session: BERT }]);
    assert!(table.acts().all(|act| act.utc_ms == Some(UTC_MS)), "set by the next entry");
    assert!(table.leaders().all(|leader| leader.utc_ms == Some(UTC_MS)));
    assert_eq!(table.next_entry_due(), None);
    let words: Vec<&str> = table.acts().map(|act| act.kind.as_str()).collect();
    assert_eq!(words, ["restored", "members"]);
    assert_eq!(table.leaders().map(|leader| (leader.term, leader.node)).collect::<Vec<_>>(), [(3, 2)]);
    assert_eq!(restored(&table), table);
}

fn event(number: u64, kind: LockEventKind) -> LockEvent {
    LockEvent {
        at: CellTime(number),
        utc_ms: 0,
        kind,
        token: Token(number),
        mode: None,
        owner: SmolStr::default(),
        session: ShortSession::default(),
        took_ms: 0,
        reason: SmolStr::default(),
    }
}

#[test]
fn everything_is_bounded() {
    let mut history = History::default();
    for number in 0..(2 * (RECENT_MAX + EVENTS_MAX)) as u64 {
        // One event per millisecond: all of them go to the rings.
        history.push(&format!("other/{number}").into(), event(number * 1_000, LockEventKind::Granted));
    }
    assert!(history.recent.len() <= RECENT_MAX && history.recent.len() > RECENT_MAX - recent::PAGE);
    assert_eq!((history.rings.len(), history.rings.locks()), (EVENTS_MAX, EVENTS_MAX));
    for number in 0..2 * ACTS_MAX as u64 {
        history.record_action(CellTime(number), None, ActionKind::Restored { last_token: Token(0) });
        history.record_leader(Leader { at: CellTime(number), utc_ms: None, term: number, node: 1 });
    }
    assert_eq!((history.acts.len(), history.leaders.len()), (ACTS_MAX, LEADERS_MAX));
}

#[test]
fn last_events_of_each_lock_stay_and_quiet_locks_are_evicted_first() {
    let mut rings = Rings::default();
    let (quiet, busy) = (LockName::from("quiet"), LockName::from("busy"));
    for number in 0..100 {
        rings.push(busy.clone(), event(number, LockEventKind::Granted));
    }
    rings.push(quiet.clone(), event(0, LockEventKind::Granted));
    assert_eq!(rings.of(&busy).count(), EVENTS_PER_LOCK_MAX);
    assert_eq!(rings.of(&busy).next().map(|event| event.token), Some(Token(99)));
    for number in 0..2 * EVENTS_MAX as u64 {
        rings.push(format!("other/{number}").into(), event(number, LockEventKind::Granted));
        if number % 1_000 == 0 {
            rings.push(busy.clone(), event(number, LockEventKind::Granted));
        }
    }
    assert_eq!(rings.iter().map(|(lock, _)| rings.of(lock).count()).sum::<usize>(), rings.len());
    assert_eq!(rings.of(&quiet).count(), 0, "the quiet lock was evicted");
    assert_eq!(rings.of(&busy).count(), EVENTS_PER_LOCK_MAX, "the busy lock was not");
}

#[test]
fn busy_locks_do_not_evict_quiet_ones_and_losses_are_always_kept() {
    let mut history = History::default();
    let (quiet, lost, busy) = (LockName::from("quiet"), LockName::from("lost"), LockName::from("busy"));
    history.push(&quiet, event(2_000_000, LockEventKind::Granted));
    for number in 0..10 * RECENT_MAX as u64 {
        // One event per microsecond: far more than the budget allows.
        history.push(&busy, event(2_000_000 + number, LockEventKind::Granted));
        if number == 5 * RECENT_MAX as u64 {
            history.push(&lost, event(2_000_000 + number, LockEventKind::Ended(Freed::SessionExpired)));
        }
    }
    assert_eq!((history.of(&quiet).count(), history.of(&lost).count()), (1, 1));
    assert_eq!(history.of(&busy).count(), EVENTS_PER_LOCK_MAX);
    assert!(history.rings.next < 10_000, "most events were dropped: {}", history.rings.next);
}

#[test]
fn wait_graph_shows_cycles_and_chains() {
    let mut table = table();
    let more: Vec<SessionId> = (1..5).map(|number| SessionId(number << 96)).collect();
    apply(
        &mut table,
        more.iter()
            .map(|&session| Command::OpenSession {
                session,
                ttl_ms: 10_000,
                owner: "more".into(),
                identity: None,
            })
            .collect(),
    );
    apply(&mut table, vec![acquire(ANNA, "a", Wait::No), acquire(BERT, "b", Wait::No)]);
    apply(&mut table, vec![acquire(ANNA, "b", Wait::Forever)]);
    assert_eq!(table.wait_graph(None, CellTime(0)).cycles, 0);
    apply(&mut table, vec![acquire(BERT, "a", Wait::Forever)]);
    // A chain of its own: 1 <- 2 <- 3 <- 4.
    for pair in more.windows(2) {
        let lock = ShortSession::from(pair[0]).to_string();
        apply(&mut table, vec![acquire(pair[0], &lock, Wait::No), acquire(pair[1], &lock, Wait::Forever)]);
    }
    let graph = table.wait_graph(None, CellTime(0));
    assert_eq!((graph.nodes.len(), graph.edges.len(), graph.cycles), (6, 5, 1));
    let in_ring: Vec<&str> =
        graph.nodes.iter().filter(|node| node.cycle == 1).map(|node| node.owner.as_str()).collect();
    assert_eq!(in_ring, ["anna", "bert"]);
    let chain: Vec<u32> = graph.longest_chain.iter().map(|&at| graph.nodes[at].session.0).collect();
    assert_eq!(chain, [4, 3, 2, 1]);
    let only = table.wait_graph(Some(&"00000003".into()), CellTime(0));
    assert_eq!(only.longest_chain.len(), 4, "what the holder waits for is part of it");
    assert_eq!(only.cycles, 0);
}

#[test]
fn top_lists_are_found_without_visiting_all_locks() {
    let mut table = table();
    apply(&mut table, (0..50).map(|n| acquire(ANNA, &format!("l/{n:02}"), Wait::No)).collect());
    apply(&mut table, vec![acquire(BERT, "late", Wait::No)]);
    apply(&mut table, vec![acquire(BERT, "l/07", Wait::Forever), acquire(BERT, "l/07", Wait::Forever)]);
    apply(&mut table, vec![acquire(BERT, "l/03", Wait::Forever)]);
    let (contended, sampled) = table.most_contended(CellTime(0), 10);
    let contended: Vec<_> =
        contended.iter().map(|c| (c.lock.as_str(), c.waiting, c.owner.as_str())).collect();
    assert_eq!((contended, sampled), (vec![("l/07", 2, "anna"), ("l/03", 1, "anna")], false));
    let (longest, _) = table.longest_held(CellTime(0), 3);
    let longest: Vec<_> = longest.iter().map(|held| (held.lock.as_str(), held.held_ms)).collect();
    assert_eq!(longest, [("l/00", 3_000), ("l/01", 3_000), ("l/02", 3_000)]);
    assert_eq!(table.longest_held(CellTime(0), 1_000).0.len(), 51);
    let all: Vec<SessionId> = table.sessions_after(None).map(|(id, _)| id).collect();
    assert_eq!(all, [ANNA, BERT]);
    let rest: Vec<SessionId> = table.sessions_after(Some(ANNA.into())).map(|(id, _)| id).collect();
    assert_eq!(rest, [BERT]);
    assert_eq!(table.sessions_after(Some(ShortSession(u32::MAX))).count(), 0);
}
