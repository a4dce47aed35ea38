//! Runs the scripts in `testdata/`: commands in a simple language, and below each, indented, the expected answers and
//! effects.
//!
//! After an intended change of behaviour regenerate them, and review the diff like code:
//! `LOCKKEEPER_REGENERATE=1 cargo test -p lockkeeper-core --test scripts`

mod parse;
mod runner;
mod show;

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

#[allow(clippy::disallowed_methods, reason = "the test regenerates its scripts on request")]
fn run(script: &str) {
    let path = testdata().join(script).with_extension("txt");
    let expected =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let actual = runner::run(&expected).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if std::env::var("LOCKKEEPER_REGENERATE").is_ok() {
        std::fs::write(&path, actual).expect("the script can be written");
    } else if actual != expected {
        panic!("{} has a different outcome:\n{}", path.display(), difference(&expected, &actual));
    }
}

/// The first difference between two scripts, with the lines before it.
fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    let same = expected.iter().zip(&actual).take_while(|(one, other)| one == other).count();
    let show = |lines: &[&str], sign: &str| -> String {
        lines.iter().skip(same).take(6).map(|line| format!("{sign} {line}\n")).collect()
    };
    let before: String =
        expected[same.saturating_sub(6)..same].iter().map(|line| format!("  {line}\n")).collect();
    format!("line {}\n{before}{}{}", same + 1, show(&expected, "-"), show(&actual, "+"))
}

macro_rules! scripts {
    ($($script:ident)*) => {
        $(
            #[test]
            fn $script() {
                run(stringify!($script));
            }
        )*

        #[test]
        fn every_script_is_run() {
            let files = std::fs::read_dir(testdata()).expect("testdata is there");
            let mut files: Vec<String> = files
                .map(|file| file.expect("a file").file_name().to_string_lossy().into_owned())
                .filter(|name| name.ends_with(".txt"))
                .collect();
            files.sort();
            assert_eq!(files, [$(concat!(stringify!($script), ".txt")),*]);
        }
    };
}

scripts! {
    acquire_all
    acquire_all_has_no_deadlock
    acquire_all_shared
    cancel
    close_and_expire
    deadlock_is_found
    election
    expiry_with_a_stale_version
    force_release
    free_locks_are_forgotten
    idle_cell_logs_its_time
    limits
    lock_delay
    many_waits_of_one_session_end
    mutual_exclusion
    oldest_settled_requests_are_forgotten
    rate_limiter
    request_ids
    retry_is_the_same_request
    reused_session_ids
    semaphore
    session_with_20000_locks_ends
    shared_and_exclusive
    time_never_goes_back
    try_is_busy_when_others_wait
    two_acquires_of_one_session
    values
    wait_die
    wait_ends
    wound_wait
}
