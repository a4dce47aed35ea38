//! The proof that these tests see: bugs of the table are put back, and some random history must show each.

use lockkeeper_core::mutation::{self, Mutation};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{TestCaseError, TestRunner};

use crate::history::{Wish, happen, histories};
use crate::{as_naive, properties};

const HISTORIES_MAX: usize = 1_000;

/// Everything that is asked of a history, and its name.
fn first_broken(wishes: &[Wish]) -> Option<(&'static str, TestCaseError)> {
    let steps = happen(wishes);
    let checks = [
        ("one_holder", properties::one_holder(&steps)),
        ("tokens_rise", properties::tokens_rise(&steps)),
        ("first_come_first_served", properties::first_come_first_served(&steps)),
        ("a_retry_changes_nothing", properties::a_retry_changes_nothing(&steps)),
        ("a_snapshot_is_the_table", properties::a_snapshot_is_the_table(&steps)),
        ("the_table_does_what_the_naive_model_does", as_naive(&steps)),
    ];
    checks.into_iter().find_map(|(name, checked)| Some((name, checked.err()?)))
}

/// How many histories it takes, and what sees it.
fn found(bug: Option<Mutation>) -> Option<(usize, &'static str, TestCaseError)> {
    // The same histories every time.
    let mut runner = TestRunner::deterministic();
    let strategy = histories();
    mutation::put_back(bug);
    let found = (1..=HISTORIES_MAX).find_map(|count| {
        let wishes = strategy.new_tree(&mut runner).expect("a history").current();
        first_broken(&wishes).map(|(name, why)| (count, name, why))
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
fn without_a_bug_there_is_nothing_to_catch() {
    let found = found(None);
    assert!(found.is_none(), "{found:?}");
}
