//! The rules hold also when every entry defers nearly all its work to the next ones.

use lockkeeper_core::bounds::{self, Bounds};
use lockkeeper_core::mutation::{self, Mutation};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::history::{happen, histories};
use crate::properties;

const TINY: Bounds = Bounds {
    steps_per_search: 3,
    steps_for_commands: 1,
    steps_per_command: 1,
    steps_for_reaping: 6,
    steps_for_forgetting: 2,
    // A request for three locks leaves its queues, is granted, and lets others look.
    steps_per_piece: 30,
    ..Bounds::REAL
};

/// Tiny budgets on this thread, as long as it lives.
struct Tiny;

impl Tiny {
    fn budgets() -> Tiny {
        bounds::set(TINY);
        Tiny
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        bounds::set(Bounds::REAL);
    }
}

proptest! {
    #[test]
    fn rules_hold_with_tiny_budgets(wishes in histories(), at in any::<Index>()) {
        let _tiny = Tiny::budgets();
        let steps = happen(&wishes);
        properties::one_holder(&steps)?;
        properties::capacity_holds(&steps)?;
        properties::tokens_rise(&steps)?;
        properties::first_come_first_served(&steps)?;
        properties::a_snapshot_is_the_table(&steps)?;
        properties::a_snapshot_and_the_rest_are_the_whole(&steps, at.index(steps.len()))?;
        properties::invariants_hold(&steps)?;
        properties::entries_stay_within_their_budgets(&steps)?;
    }
}

/// The proof that a history sees it: without budgets some entry does too much.
#[test]
fn work_beyond_the_budget_is_noticed() {
    let _tiny = Tiny::budgets();
    let mut runner = TestRunner::deterministic();
    let strategy = histories();
    mutation::put_back(Some(Mutation::IgnoreBudget));
    let found = (1..=2_000).find(|_| {
        let wishes = strategy.new_tree(&mut runner).expect("a history").current();
        properties::entries_stay_within_their_budgets(&happen(&wishes)).is_err()
    });
    mutation::put_back(None);
    println!("{:?}: history {:?}", Mutation::IgnoreBudget, found.expect("some entry takes too many steps"));
}
