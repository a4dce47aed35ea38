//! What a test needs and this machine does not have.

/// Goes on without the test only where somebody has said that this may be: a test that is passed over looks like one that
/// has passed.
const MAY_SKIP: &str = "LOCKKEEPER_TESTS_MAY_SKIP";

/// Fails with what to do about it.
#[track_caller]
pub(crate) fn lacking(what: &str, remedy: &str) {
    assert!(
        std::env::var_os(MAY_SKIP).is_some(),
        "{what}: {remedy}, or set {MAY_SKIP}=1 to go on without what needs it"
    );
    eprintln!("SKIPPED: {what}");
}
