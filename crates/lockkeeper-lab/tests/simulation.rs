//! Seeds of the simulation, and the proof that it sees: see docs/proof.md.
//!
//! LOCKKEEPER_SEEDS sets how many (300), LOCKKEEPER_FIRST_SEED which one is the first; a seed that fails prints how to
//! run it again.

#![cfg(feature = "simulation")]
#![allow(clippy::unwrap_used, reason = "a test that does not get what it asks for has failed")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_lab::simulation::{Mutation, Outcome, Setting, proof, run};

const LASTS: Duration = Duration::from_secs(8);

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn one(seed: u64) -> Outcome {
    run(Setting { seed, lasts: LASTS, tells: false, mutation: None }).unwrap()
}

#[test]
fn a_seed_repeats_itself_to_the_last_event() {
    for seed in [3, 17, 41] {
        let (first, second) = (one(seed), one(seed));
        assert!(first.grants > 0, "seed {seed}: nothing happened");
        assert_eq!(first.hash, second.hash, "seed {seed} took two ways");
    }
}

#[test]
fn no_seed_breaks_a_rule() {
    let first = from_environment("LOCKKEEPER_FIRST_SEED", 1_000);
    let end = first + from_environment("LOCKKEEPER_SEEDS", 300);
    let next = AtomicU64::new(first);
    let broken = Mutex::new(Vec::new());
    let grants = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let outcome = one(seed);
                    grants.fetch_add(outcome.grants as u64, Ordering::Relaxed);
                    for (checker, words) in outcome.violations {
                        broken.lock().unwrap().push(format!(
                            "seed {seed}, {checker}: {words}\n  again: cargo run -p lockkeeper-lab --features simulation \
                             --bin simulate -- --seed {seed} --seconds {}",
                            LASTS.as_secs()
                        ));
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().unwrap();
    println!("{} seeds, {} grants", end - first, grants.load(Ordering::Relaxed));
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(grants.load(Ordering::Relaxed) > (end - first) * 10, "hardly anything was granted");
}

/// The whole list takes long: `simulate --mutations 1000` makes the table of docs/proof.md. Here are those that some seed
/// finds soon, one for each part: table, node, disk, library.
#[test]
fn bugs_that_are_put_back_are_caught() {
    let some = [
        Mutation::Overtake,
        Mutation::ShortTimeAtTakeOver,
        Mutation::LeaseIgnoresPromise,
        Mutation::ForgetRefusals,
        Mutation::IgnoreDisagreement,
        Mutation::GrantBeforeCommit,
        Mutation::AcknowledgeBeforeSync,
        Mutation::NoDeadline,
        Mutation::WallClock,
    ];
    for mutation in some {
        let found = proof::find(mutation, 1_500, LASTS, threads()).unwrap();
        println!("{mutation:?}: {:?} seeds, {}: {}", found.seeds, found.checker, found.words);
        assert!(found.seeds.is_some(), "{mutation:?} was not caught");
    }
}
