//! Runs the stories in `testdata/`: commands as a person would write them, and below each, indented, what
//! must follow from it.
//!
//! After a wanted change of behaviour write them anew, and review the difference as code:
//! `LOCKKEEPER_REGENERATE=1 cargo test -p lockkeeper-core --test scripts`

mod parse;
mod show;
mod stage;

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

#[allow(clippy::disallowed_methods, reason = "the test writes its stories anew when a person asks for it")]
fn play(story: &str) {
    let path = testdata().join(story).with_extension("txt");
    let written =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let played = stage::play(&written).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if std::env::var("LOCKKEEPER_REGENERATE").is_ok() {
        std::fs::write(&path, played).expect("the story can be written");
    } else if played != written {
        panic!("{} tells another story:\n{}", path.display(), difference(&written, &played));
    }
}

/// The first place where two stories part, with the lines before it.
fn difference(written: &str, played: &str) -> String {
    let (written, played): (Vec<_>, Vec<_>) = (written.lines().collect(), played.lines().collect());
    let same = written.iter().zip(&played).take_while(|(one, other)| one == other).count();
    let show = |lines: &[&str], sign: &str| -> String {
        lines.iter().skip(same).take(6).map(|line| format!("{sign} {line}\n")).collect()
    };
    let before: String =
        written[same.saturating_sub(6)..same].iter().map(|line| format!("  {line}\n")).collect();
    format!("line {}\n{before}{}{}", same + 1, show(&written, "-"), show(&played, "+"))
}

macro_rules! stories {
    ($($story:ident)*) => {
        $(
            #[test]
            fn $story() {
                play(stringify!($story));
            }
        )*

        #[test]
        fn every_story_is_played() {
            let told = std::fs::read_dir(testdata()).expect("testdata is there");
            let mut told: Vec<String> = told
                .map(|file| file.expect("a file").file_name().to_string_lossy().into_owned())
                .filter(|name| name.ends_with(".txt"))
                .collect();
            told.sort();
            assert_eq!(told, [$(concat!(stringify!($story), ".txt")),*]);
        }
    };
}

stories! {
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
    limits
    lock_delay
    many_waits_of_one_session_end
    mutual_exclusion
    quiet_cell_logs_its_time
    rate_limiter
    request_ids
    retry_is_the_same_request
    semaphore
    session_ids_come_back
    session_of_20000_locks
    settled_requests_are_forgotten_in_turn
    shared_and_exclusive
    time_never_goes_back
    try_is_busy_when_others_wait
    two_acquires_of_one_session
    values
    wait_die
    wait_ends
    wound_wait
}
