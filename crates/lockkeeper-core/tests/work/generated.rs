//! Generated workloads: long queues, many scopes and requests for many locks, then bursts of commands that affect all of
//! them. Every entry stays within its budgets (checked by [`Cell`]), and in the end nothing is held or waiting.

use lockkeeper_core::Wait;
use lockkeeper_core::mutation::{self, Mutation};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

const LOCKS: usize = 4;
/// Number of locks of a wide request.
const WIDTH: usize = 100;
/// The session that holds every lock of the workload.
const HOLDER: u128 = 1;
/// The session of waiting requests without a scope.
const WAITER: u128 = 2;
/// The session of all scopes.
const SCOPED: u128 = 3;
/// The session of requests for many locks.
const WIDE: u128 = 4;

/// A group of requests for one lock.
#[derive(Debug, Clone, Copy)]
enum Group {
    Holders,
    Scopes(Policy),
    Readers,
    Writers,
    Brief,
    Wide,
}

/// A burst of commands.
#[derive(Debug, Clone, Copy)]
enum Burst {
    ScopesWait(usize, Policy),
    OldestWounds(usize),
    Release,
    Force(usize),
    CancelWide,
    CancelGrants,
    Expire(u128),
    TimePasses,
    HandOver(usize),
    Drain,
}

fn group() -> impl Strategy<Value = (Group, usize, usize)> {
    let policy = prop_oneof![Just(Policy::Detect), Just(Policy::WaitDie), Just(Policy::WoundWait)];
    let kind = prop_oneof![
        1 => Just(Group::Holders),
        3 => policy.prop_map(Group::Scopes),
        2 => Just(Group::Readers),
        3 => Just(Group::Writers),
        1 => Just(Group::Brief),
        2 => Just(Group::Wide),
    ];
    (kind, 0..LOCKS, 1..1_500usize)
}

fn burst() -> impl Strategy<Value = Burst> {
    let policy = prop_oneof![Just(Policy::Detect), Just(Policy::WoundWait)];
    prop_oneof![
        4 => (0..LOCKS, policy).prop_map(|(lock, policy)| Burst::ScopesWait(lock, policy)),
        2 => (0..LOCKS).prop_map(Burst::OldestWounds),
        3 => Just(Burst::Release),
        1 => (0..LOCKS).prop_map(Burst::Force),
        2 => Just(Burst::CancelWide),
        2 => Just(Burst::CancelGrants),
        1 => (1..=WIDE).prop_map(Burst::Expire),
        1 => Just(Burst::TimePasses),
        1 => (0..LOCKS).prop_map(Burst::HandOver),
        1 => Just(Burst::Drain),
    ]
}

struct Workload {
    cell: Cell,
    /// Number of requests for many locks.
    wide: usize,
    scopes: usize,
}

fn name(lock: usize) -> String {
    format!("lock-{lock}")
}

impl Workload {
    fn new() -> Workload {
        let mut workload = Workload { cell: Cell::default(), wide: 0, scopes: 0 };
        workload.cell.apply((HOLDER..=WIDE).map(open).collect());
        workload
    }

    fn run(&mut self, commands: Vec<Command>) {
        self.cell.apply_all(commands);
    }

    fn add_group(&mut self, group: Group, lock: usize, count: usize) {
        let name = name(lock);
        let commands = match group {
            Group::Holders => vec![Command::Acquire(acquire(HOLDER, &name)); count.min(2)],
            Group::Readers => vec![Command::Acquire(shared(waiting(WAITER, &name))); count],
            Group::Writers => vec![Command::Acquire(waiting(WAITER, &name)); count],
            Group::Brief => {
                let wait = Wait::ForMs(1_000);
                vec![Command::Acquire(Acquire { wait, ..waiting(WAITER, &name) }); count]
            }
            Group::Scopes(policy) => {
                let numbers = self.scopes..self.scopes + count / 4;
                self.scopes = numbers.end;
                let request = |scope| Acquire { policy, ..scoped(shared(acquire(SCOPED, &name)), scope) };
                numbers.map(|scope| Command::Acquire(request(scope))).collect()
            }
            Group::Wide => {
                let numbers = self.wide..self.wide + count / 10;
                self.wide = numbers.end;
                // Each waits for a lock of its own and blocks no other, so that all can be granted in one entry.
                let locks = |number| {
                    let own = (0..WIDTH).map(|lock| format!("wide-{number:05}-{lock:03}").into());
                    Locks::many(own)
                };
                let held = |number| Command::Acquire(acquire(HOLDER, &format!("wide-{number:05}-000")));
                let waits = |number| Acquire {
                    locks: locks(number),
                    request: Some(format!("wide-{number}").into()),
                    ..waiting(WIDE, "")
                };
                numbers.flat_map(|number| [held(number), Command::Acquire(waits(number))]).collect()
            }
        };
        self.run(commands);
    }

    fn held_by(&self, session: u128) -> Vec<Command> {
        let session = SessionId(session);
        let grants = self.cell.table.grants_of(session);
        let release = |grant: lockkeeper_core::Grant| {
            let token = grant.token;
            let locks = grant.locks.as_slice().to_vec();
            locks.into_iter().map(move |lock| Command::Release { session, lock, token, forget: false })
        };
        grants.flat_map(release).collect()
    }

    fn run_burst(&mut self, burst: Burst) {
        match burst {
            Burst::ScopesWait(lock, policy) => {
                let request = |scope| Acquire { policy, ..scoped(waiting(SCOPED, &name(lock)), scope) };
                self.run((0..self.scopes).map(|scope| Command::Acquire(request(scope))).collect());
            }
            Burst::OldestWounds(lock) => {
                let policy = Policy::WoundWait;
                let request = Acquire { policy, ..scoped(waiting(SCOPED, &name(lock)), 0) };
                self.run(vec![Command::Acquire(request); 3]);
            }
            Burst::Release => self.run(self.held_by(HOLDER)),
            Burst::Force(lock) => {
                let (lock, by) = (name(lock).into(), "ada".into());
                self.run(vec![Command::ForceRelease { lock, reason: "stuck".into(), by }]);
            }
            Burst::CancelWide => self.cancel(
                (1..self.cell.table.counts().waiting + 1)
                    .map(|back| Waiting::Ticket(Ticket(self.cell.table.last_ticket().0 + 1 - back)))
                    .collect(),
            ),
            Burst::CancelGrants => {
                self.cancel((0..self.wide).map(|n| Waiting::Request(format!("wide-{n}").into())).collect());
            }
            Burst::Expire(session) => {
                let session = SessionId(session);
                let Some(alive) = self.cell.table.session(session) else { return };
                self.run(vec![Command::ExpireSession { session, version: alive.version }]);
            }
            Burst::TimePasses => {
                let later = self.cell.table.now().plus_ms(2_000);
                self.cell.apply_at(later, vec![Command::Tick]);
            }
            Burst::HandOver(lock) => {
                let session = SessionId(HOLDER);
                let lock = name(lock).into();
                let token = self.cell.table.last_token_of(&lock);
                self.run(vec![Command::HandOver { session, lock, token, to: "nobody".into() }; 100]);
            }
            Burst::Drain => drop(self.cell.drain()),
        }
    }

    fn cancel(&mut self, what: Vec<Waiting>) {
        let session = SessionId(WIDE);
        self.run(what.into_iter().map(|what| Command::Cancel { session, what }).collect());
    }
}

fn run_workload(groups: &[(Group, usize, usize)], bursts: &[Burst]) -> Workload {
    let mut workload = Workload::new();
    for lock in 0..LOCKS {
        workload.add_group(Group::Scopes(Policy::Detect), lock, 4 * 60);
    }
    for &(group, lock, count) in groups {
        workload.add_group(group, lock, count);
    }
    for &burst in bursts {
        workload.run_burst(burst);
    }
    workload
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_entry_of_a_generated_workload_stays_within_its_budgets(
        groups in vec(group(), 1..10),
        bursts in vec(burst(), 1..10),
    ) {
        let mut workload = run_workload(&groups, &bursts);
        workload.cell.drain();
        prop_assert!(!workload.cell.table.has_backlog());
        workload.cell.print("a generated workload");
        // End all sessions.
        for session in HOLDER..=WIDE {
            workload.run_burst(Burst::Expire(session));
        }
        workload.cell.drain();
        let counts = workload.cell.table.counts();
        prop_assert_eq!((counts.waiting, counts.grants, counts.locks), (0, 0, 0));
    }
}

/// Mutation test: without budgets some entry of a workload does too much.
#[test]
fn generated_workloads_detect_work_beyond_the_budget() {
    let mut runner = TestRunner::deterministic();
    let strategy = (vec(group(), 1..10), vec(burst(), 1..10));
    mutation::put_back(Some(Mutation::IgnoreBudget));
    let found = (1..=40).find(|_| {
        let (groups, bursts) = strategy.new_tree(&mut runner).expect("a workload").current();
        std::panic::catch_unwind(|| drop(run_workload(&groups, &bursts))).is_err()
    });
    mutation::put_back(None);
    println!("found with workload {:?}", found.expect("some entry takes too many steps"));
}
