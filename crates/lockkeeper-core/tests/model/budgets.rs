//! The properties also hold when every entry defers nearly all its work to the next ones.

use lockkeeper_core::bounds::{self, Bounds};
use lockkeeper_core::mutation::{self, Mutation};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::history::{histories, run_history};
use crate::properties;

const TINY: Bounds = Bounds {
    steps_per_search: 3,
    steps_for_commands: 1,
    steps_per_command: 1,
    steps_for_reaping: 6,
    steps_for_forgetting: 2,
    // A request for three locks leaves its queues, is granted, and others are checked for admission.
    steps_per_piece: 30,
    ..Bounds::REAL
};

/// Guard that sets tiny budgets on this thread.
struct TinyBudgets;

impl TinyBudgets {
    fn set() -> TinyBudgets {
        bounds::set(TINY);
        TinyBudgets
    }
}

impl Drop for TinyBudgets {
    fn drop(&mut self) {
        bounds::set(Bounds::REAL);
    }
}

proptest! {
    #[test]
    fn rules_hold_with_tiny_budgets(plans in histories(), at in any::<Index>()) {
        let _tiny = TinyBudgets::set();
        let steps = run_history(&plans);
        properties::one_holder(&steps)?;
        properties::capacity_holds(&steps)?;
        properties::tokens_rise(&steps)?;
        properties::first_come_first_served(&steps)?;
        properties::snapshot_restores_the_table(&steps)?;
        properties::snapshot_and_later_entries_give_the_same_table(&steps, at.index(steps.len()))?;
        properties::invariants_hold(&steps)?;
        properties::entries_stay_within_their_budgets(&steps)?;
    }
}

/// Mutation test: without budgets some entry of a history does too much.
#[test]
fn work_beyond_the_budget_is_detected() {
    let _tiny = TinyBudgets::set();
    let mut runner = TestRunner::deterministic();
    let strategy = histories();
    mutation::put_back(Some(Mutation::IgnoreBudget));
    let found = (1..=2_000).find(|_| {
        let plans = strategy.new_tree(&mut runner).expect("a history").current();
        properties::entries_stay_within_their_budgets(&run_history(&plans)).is_err()
    });
    mutation::put_back(None);
    println!("{:?}: history {:?}", Mutation::IgnoreBudget, found.expect("some entry takes too many steps"));
}
