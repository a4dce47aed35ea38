//! Mutation test: each bug of the table that is put back must be found by some random history.

use lockkeeper_core::mutation::{self, Mutation};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{TestCaseError, TestRunner};

use crate::history::{EntryPlan, histories, run_history};
use crate::{check_against_naive_model, properties};

const HISTORIES_MAX: usize = 1_000;

/// The first violated property of a history, with its name.
fn first_broken(plans: &[EntryPlan]) -> Option<(&'static str, TestCaseError)> {
    let steps = run_history(plans);
    let checks = [
        ("one_holder", properties::one_holder(&steps)),
        ("tokens_rise", properties::tokens_rise(&steps)),
        ("first_come_first_served", properties::first_come_first_served(&steps)),
        ("retry_changes_nothing", properties::retry_changes_nothing(&steps)),
        ("snapshot_restores_the_table", properties::snapshot_restores_the_table(&steps)),
        ("table_agrees_with_the_naive_model", check_against_naive_model(&steps)),
    ];
    checks.into_iter().find_map(|(name, checked)| Some((name, checked.err()?)))
}

/// Finds a bug. Returns the number of histories that it took, and the violated property.
fn found(bug: Option<Mutation>) -> Option<(usize, &'static str, TestCaseError)> {
    // The same histories every time.
    let mut runner = TestRunner::deterministic();
    let strategy = histories();
    mutation::put_back(bug);
    let found = (1..=HISTORIES_MAX).find_map(|count| {
        let plans = strategy.new_tree(&mut runner).expect("a history").current();
        first_broken(&plans).map(|(name, why)| (count, name, why))
    });
    mutation::put_back(None);
    found
}

#[test]
fn bugs_of_the_table_are_caught() {
    let of_the_table = [
        Mutation::ForgetRequest,
        Mutation::ForgetRefusals,
        Mutation::Overtake,
        Mutation::ExpiryIgnoresVersion,
        Mutation::TokenFromMemory,
        Mutation::ReleaseByAnyone,
        Mutation::StaleWrite,
    ];
    for bug in of_the_table {
        let Some((count, name, _)) = found(Some(bug)) else { panic!("{bug:?} was not caught") };
        println!("{bug:?}: {name}, history {count}");
    }
}

#[test]
fn without_a_bug_all_properties_hold() {
    let found = found(None);
    assert!(found.is_none(), "{found:?}");
}
