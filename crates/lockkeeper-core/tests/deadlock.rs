//! Random transactions that take four locks one after the other. With every policy, no deadlock persists, no transaction
//! is killed without a conflict, and the oldest is never killed by age.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use std::collections::BTreeMap;

use lockkeeper_core::{
    Acquire, Batch, CellTime, Command, Effect, Freed, LockTable, Locks, Mode, Policy, Refusal, Reply,
    Restore, SessionId, Ticket, Token, Wait,
};

const TRANSACTIONS: usize = 8;
const LOCKS: u64 = 5;
const LOCKS_EACH: usize = 4;
const SEEDS: u64 = 150;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// A scope that takes its locks in random order, and starts over when it is killed.
struct Transaction {
    scope: String,
    session: SessionId,
    policy: Policy,
    wanted: Vec<(String, Mode)>,
    held: Vec<(String, Token)>,
    waits: Option<Ticket>,
    done: bool,
    /// The number of its first acquire: lower is older.
    age: Option<u64>,
    killed: u32,
}

struct World {
    table: LockTable,
    index: u64,
    transactions: Vec<Transaction>,
    ages: u64,
}

impl World {
    fn new(seed: u64, policies: &[Policy]) -> World {
        let mut random = Random(seed * 2 + 1);
        let mut world = World { table: LockTable::new(), index: 0, transactions: Vec::new(), ages: 0 };
        for number in 0..TRANSACTIONS {
            // Two transactions share a session: only scopes matter.
            let session = SessionId(number as u128 / 2 + 1);
            if number % 2 == 0 {
                world
                    .apply(Command::OpenSession {
                        session,
                        ttl_ms: 10_000,
                        owner: format!("o{number}").into(),
                        identity: None,
                    })
                    .unwrap();
            }
            let mut wanted: Vec<(String, Mode)> = Vec::new();
            while wanted.len() < LOCKS_EACH {
                let name = format!("l{}", random.below(LOCKS));
                let mode = if random.below(3) == 0 { Mode::Shared } else { Mode::Exclusive };
                if !wanted.iter().any(|(other, _)| *other == name) {
                    wanted.push((name, mode));
                }
            }
            world.transactions.push(Transaction {
                scope: format!("t{number}"),
                session,
                policy: policies[random.below(policies.len() as u64) as usize],
                wanted,
                held: Vec::new(),
                waits: None,
                done: false,
                age: None,
                killed: 0,
            });
        }
        world
    }

    fn apply(&mut self, command: Command) -> Result<Reply, Refusal> {
        self.index += 1;
        let mut applied = self
            .table
            .apply(self.index, &Batch { now: CellTime(self.index), utc_ms: 0, commands: vec![command] })
            .unwrap();
        self.table.check_invariants().unwrap();
        for effect in applied.effects {
            match effect {
                Effect::Granted { ticket, grant, .. } => {
                    let one = self.transactions.iter_mut().find(|one| one.waits == Some(ticket)).unwrap();
                    one.waits = None;
                    one.held.push((grant.locks.as_slice()[0].to_string(), grant.token));
                }
                Effect::Ended { ticket, refusal, .. } => {
                    assert_eq!(refusal, Refusal::Wounded);
                    let at = self.transactions.iter().position(|one| one.waits == Some(ticket)).unwrap();
                    self.transactions[at].waits = None;
                    self.killed(at);
                }
                Effect::Freed { token, why: Freed::Wounded, .. } => {
                    let at = self
                        .transactions
                        .iter()
                        .position(|one| one.held.iter().any(|(_, held)| *held == token));
                    let at = at.unwrap();
                    self.transactions[at].held.retain(|(_, held)| *held != token);
                    self.killed(at);
                }
                _ => {}
            }
        }
        applied.answers.remove(0)
    }

    /// Counts a kill by age. The oldest unfinished transaction must never be killed.
    fn killed(&mut self, at: usize) {
        let age = self.transactions[at].age.unwrap();
        let older = self.transactions.iter().any(|one| !one.done && one.age.is_some_and(|other| other < age));
        assert!(older, "the oldest was killed: {}", self.transactions[at].scope);
        self.transactions[at].killed += 1;
    }

    /// Advances a transaction that does not wait.
    fn step(&mut self, at: usize) {
        let one = &mut self.transactions[at];
        let Some((name, mode)) = one.wanted.get(one.held.len()).cloned() else {
            one.done = true;
            self.release_all(at);
            return;
        };
        if one.age.is_none() {
            one.age = Some(self.ages);
            self.ages += 1;
        }
        let request = Acquire {
            mode,
            wait: Wait::Forever,
            scope: Some(one.scope.as_str().into()),
            policy: one.policy,
            ..Acquire::new(one.session, Locks::One(name.as_str().into()))
        };
        let (policy, age) = (one.policy, one.age.unwrap());
        let view = self.table.lock_view(&name.as_str().into(), CellTime(0), 100);
        match self.apply(Command::Acquire(request)) {
            Ok(Reply::Granted(grant)) => self.transactions[at].held.push((name, grant.token)),
            Ok(Reply::Queued { ticket }) => self.transactions[at].waits = Some(ticket),
            Err(Refusal::Died { .. }) => {
                assert_eq!(policy, Policy::WaitDie);
                let ages: BTreeMap<&str, u64> =
                    self.transactions.iter().filter_map(|one| Some((one.scope.as_str(), one.age?))).collect();
                let holders = view.holders.iter().map(|holder| ages[holder.scope.as_str()]);
                let mut all = holders.chain(view.queue.iter().map(|waiter| ages[waiter.scope.as_str()]));
                assert!(all.any(|other| other < age), "it died although no older scope blocks it");
                self.killed(at);
                self.release_all(at);
            }
            // Wounded earlier, or by this request.
            Err(Refusal::Wounded) => {
                assert!(self.transactions[at].held.is_empty(), "everything was taken from it");
            }
            Err(Refusal::Deadlock { cycle }) => {
                assert!(policy == Policy::Detect || self.is_mixed(), "age alone prevents deadlocks");
                self.check_cycle(at, &name, &cycle);
                self.transactions[at].killed += 1;
                self.release_all(at);
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_mixed(&self) -> bool {
        self.transactions.iter().any(|one| one.policy != self.transactions[0].policy)
    }

    /// Checks that each step of the cycle waits for a lock that the next one holds, or precedes it in the queue.
    fn check_cycle(&self, at: usize, wanted: &str, cycle: &[lockkeeper_core::CycleStep]) {
        assert_eq!(cycle[0].scope, self.transactions[at].scope);
        assert_eq!(cycle[0].lock, wanted);
        for (number, step) in cycle.iter().enumerate() {
            let next = &cycle[(number + 1) % cycle.len()].scope;
            let view = self.table.lock_view(&step.lock, CellTime(0), 100);
            let place = view.queue.iter().position(|waiter| waiter.scope == step.scope).unwrap_or(usize::MAX);
            let holds = view.holders.iter().any(|holder| holder.scope == *next);
            let before =
                view.queue.iter().position(|waiter| waiter.scope == *next).is_some_and(|other| other < place);
            assert!(holds || before, "{next} does not block {} at {}", step.scope, step.lock);
            assert!(number == 0 || place != usize::MAX, "{} does not wait for {}", step.scope, step.lock);
        }
    }

    fn release_all(&mut self, at: usize) {
        while let Some((lock, token)) = self.transactions[at].held.pop() {
            let session = self.transactions[at].session;
            let release = Command::Release { session, lock: lock.into(), token, forget: true };
            self.apply(release).unwrap();
        }
    }

    /// Runs all transactions to completion. Returns the number of kills.
    fn run(mut self, seed: u64) -> u32 {
        let mut random = Random(seed * 2 + 77);
        for _ in 0..100_000 {
            let ready: Vec<usize> = (0..self.transactions.len())
                .filter(|at| !self.transactions[*at].done && self.transactions[*at].waits.is_none())
                .collect();
            if ready.is_empty() {
                assert!(self.transactions.iter().all(|one| one.done), "seed {seed}: deadlock");
                let counts = self.table.counts();
                assert_eq!((counts.grants, counts.waiting), (0, 0));
                return self.transactions.iter().map(|one| one.killed).sum();
            }
            if random.below(16) == 0 {
                let mut restore = Restore::new();
                self.table.snapshot().for_each(|chunk| restore.push(&chunk).unwrap());
                assert!(restore.finish().unwrap() == self.table, "a snapshot keeps the scopes");
            }
            self.step(ready[random.below(ready.len() as u64) as usize]);
        }
        panic!("seed {seed}: no end after 100,000 steps");
    }
}

fn all_seeds(policies: &[Policy]) {
    let killed: u32 = (1..=SEEDS).map(|seed| World::new(seed, policies).run(seed)).sum();
    assert!(killed > SEEDS as u32 / 4, "too few conflicts: {killed}");
}

#[test]
fn detection_resolves_every_deadlock() {
    all_seeds(&[Policy::Detect]);
}

#[test]
fn wait_die_prevents_deadlock_and_never_kills_the_oldest() {
    all_seeds(&[Policy::WaitDie]);
}

#[test]
fn wound_wait_prevents_deadlock_and_never_kills_the_oldest() {
    all_seeds(&[Policy::WoundWait]);
}

#[test]
fn mixed_policies_resolve_every_deadlock() {
    all_seeds(&[Policy::Detect, Policy::WaitDie, Policy::WoundWait]);
}
