//! Random histories: checks the lock table against a naive model and against its properties.
//!
//! Each test runs 256 histories; more with `PROPTEST_CASES=100000 cargo test -p lockkeeper-core --test model`.

#[cfg(feature = "mutations")]
mod budgets;
#[cfg(feature = "mutations")]
mod bugs;
mod history;
mod naive;
mod properties;

use history::{KEYS, LOCKS, Step, histories, run_history};
use lockkeeper_core::{Applied, LockName, Refusal};
use naive::Naive;
use proptest::prelude::*;
use proptest::sample::Index;

proptest! {
    #[test]
    fn table_agrees_with_the_naive_model(plans in histories()) {
        check_against_naive_model(&run_history(&plans))?;
    }

    #[test]
    fn one_holder(plans in histories()) {
        properties::one_holder(&run_history(&plans))?;
    }

    #[test]
    fn capacity_holds(plans in histories()) {
        properties::capacity_holds(&run_history(&plans))?;
    }

    #[test]
    fn tokens_rise(plans in histories()) {
        properties::tokens_rise(&run_history(&plans))?;
    }

    #[test]
    fn first_come_first_served(plans in histories()) {
        properties::first_come_first_served(&run_history(&plans))?;
    }

    #[test]
    fn every_queue_drains(plans in histories()) {
        properties::every_queue_drains(&run_history(&plans))?;
    }

    #[test]
    fn retry_changes_nothing(plans in histories()) {
        properties::retry_changes_nothing(&run_history(&plans))?;
    }

    #[test]
    fn snapshot_restores_the_table(plans in histories()) {
        properties::snapshot_restores_the_table(&run_history(&plans))?;
    }

    #[test]
    fn snapshot_and_later_entries_give_the_same_table(plans in histories(), at in any::<Index>()) {
        let steps = run_history(&plans);
        properties::snapshot_and_later_entries_give_the_same_table(&steps, at.index(steps.len()))?;
    }

    #[test]
    fn invariants_hold(plans in histories()) {
        properties::invariants_hold(&run_history(&plans))?;
    }

    #[test]
    fn entries_stay_within_their_budgets(plans in histories()) {
        properties::entries_stay_within_their_budgets(&run_history(&plans))?;
    }

    #[test]
    fn time_never_goes_back(plans in histories()) {
        properties::time_never_goes_back(&run_history(&plans))?;
    }

    #[test]
    fn versions_are_never_reused(plans in histories()) {
        properties::versions_are_never_reused(&run_history(&plans))?;
    }
}

fn check_against_naive_model(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut naive = Naive::default();
    for step in steps {
        let expected = naive.apply(&step.batch);
        prop_assert_eq!(without_texts(&step.applied), without_texts(&expected), "{:?}", step.batch);
        check_views(step, &naive)?;
    }
    Ok(())
}

/// Removes the texts of refusals, which the model does not have.
fn without_texts(applied: &Applied) -> Applied {
    let mut applied = applied.clone();
    for answer in &mut applied.answers {
        if let Err(Refusal::Invalid(text) | Refusal::TooLarge(text) | Refusal::Limit(text)) = answer {
            *text = "".into();
        }
    }
    applied
}

fn check_views(step: &Step, naive: &Naive) -> Result<(), TestCaseError> {
    let table = &step.after;
    for name in LOCKS.map(LockName::from) {
        prop_assert_eq!(table.lock_view(&name, table.now(), usize::MAX), naive.view(&name));
    }
    let sessions: Vec<_> =
        table.sessions().map(|(id, alive)| (id, alive.version, alive.grants(), alive.waits())).collect();
    prop_assert_eq!(sessions, naive.sessions());
    for key in KEYS {
        let value = table.value(key).map(|value| (value.bytes.to_vec(), value.version, value.token.0));
        prop_assert_eq!(value, naive.value(key));
    }
    prop_assert_eq!(table.next_wake(), naive.next_wake());
    prop_assert_eq!(table.counts(), naive.counts());
    Ok(())
}
