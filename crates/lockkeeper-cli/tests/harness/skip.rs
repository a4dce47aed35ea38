//! Tests that need something this machine does not have.

/// Variable that allows skipped tests. Without it they fail, because a skipped test looks like a passed one.
const MAY_SKIP: &str = "LOCKKEEPER_TESTS_MAY_SKIP";

/// Fails with the remedy, or skips if [`MAY_SKIP`] is set.
#[track_caller]
pub(crate) fn skip_or_fail(what: &str, remedy: &str) {
    assert!(
        std::env::var_os(MAY_SKIP).is_some(),
        "{what}: {remedy}, or set {MAY_SKIP}=1 to skip the tests that need it"
    );
    eprintln!("SKIPPED: {what}");
}
