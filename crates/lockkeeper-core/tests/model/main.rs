//! Random histories: the lock table against a naive model of it, and against what must always be true.
//!
//! 256 histories for each test; more with `PROPTEST_CASES=100000 cargo test -p lockkeeper-core --test model`.

#[cfg(feature = "mutations")]
mod budgets;
#[cfg(feature = "mutations")]
mod bugs;
mod history;
mod naive;
mod properties;

use history::{KEYS, LOCKS, Step, happen, histories};
use lockkeeper_core::{Applied, LockName, Refusal};
use naive::Naive;
use proptest::prelude::*;
use proptest::sample::Index;

proptest! {
    #[test]
    fn the_table_does_what_the_naive_model_does(wishes in histories()) {
        as_naive(&happen(&wishes))?;
    }

    #[test]
    fn one_holder(wishes in histories()) {
        properties::one_holder(&happen(&wishes))?;
    }

    #[test]
    fn capacity_holds(wishes in histories()) {
        properties::capacity_holds(&happen(&wishes))?;
    }

    #[test]
    fn tokens_rise(wishes in histories()) {
        properties::tokens_rise(&happen(&wishes))?;
    }

    #[test]
    fn first_come_first_served(wishes in histories()) {
        properties::first_come_first_served(&happen(&wishes))?;
    }

    #[test]
    fn every_line_drains(wishes in histories()) {
        properties::every_line_drains(&happen(&wishes))?;
    }

    #[test]
    fn a_retry_changes_nothing(wishes in histories()) {
        properties::a_retry_changes_nothing(&happen(&wishes))?;
    }

    #[test]
    fn a_snapshot_is_the_table(wishes in histories()) {
        properties::a_snapshot_is_the_table(&happen(&wishes))?;
    }

    #[test]
    fn a_snapshot_and_the_rest_are_the_whole(wishes in histories(), at in any::<Index>()) {
        let steps = happen(&wishes);
        properties::a_snapshot_and_the_rest_are_the_whole(&steps, at.index(steps.len()))?;
    }

    #[test]
    fn invariants_hold(wishes in histories()) {
        properties::invariants_hold(&happen(&wishes))?;
    }

    #[test]
    fn entries_stay_within_their_budgets(wishes in histories()) {
        properties::entries_stay_within_their_budgets(&happen(&wishes))?;
    }

    #[test]
    fn time_never_goes_back(wishes in histories()) {
        properties::time_never_goes_back(&happen(&wishes))?;
    }

    #[test]
    fn versions_never_come_back(wishes in histories()) {
        properties::versions_never_come_back(&happen(&wishes))?;
    }
}

fn as_naive(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut naive = Naive::default();
    for step in steps {
        let expected = naive.apply(&step.batch);
        prop_assert_eq!(without_texts(&step.applied), without_texts(&expected), "{:?}", step.batch);
        the_same_is_seen(step, &naive)?;
    }
    Ok(())
}

/// The texts of refusals are for people; the model has none.
fn without_texts(applied: &Applied) -> Applied {
    let mut applied = applied.clone();
    for answer in &mut applied.answers {
        if let Err(Refusal::Invalid(text) | Refusal::TooLarge(text) | Refusal::Limit(text)) = answer {
            *text = "".into();
        }
    }
    applied
}

fn the_same_is_seen(step: &Step, naive: &Naive) -> Result<(), TestCaseError> {
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
