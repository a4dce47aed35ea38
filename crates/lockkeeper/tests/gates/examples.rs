//! The examples work, with the commands that they name.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::servers::Site;
use crate::servers::postgres::Postgres;

/// The example binary built by `./test`, unless the source is newer.
fn built(example: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.parent()?.parent()?.join("examples").join(example);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example).with_extension("rs");
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified());
    (changed(&program).ok()? > changed(&source).ok()?).then_some(program)
}

fn run(example: &str, arguments: &[&str]) -> String {
    let mut command = match built(example) {
        Some(program) => Command::new(program),
        None => {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "-p", "lockkeeper", "--all-features", "--example", example, "--"]);
            // With these variables of the outer cargo, the inner one would rebuild half of the dependencies.
            for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_")) {
                cargo.env_remove(name);
            }
            cargo
                .env_remove("CARGO_MANIFEST_DIR")
                .env_remove("CARGO_MANIFEST_LINKS")
                .env_remove("CARGO_MANIFEST_PATH");
            cargo
        }
    };
    let output = command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{example}: {out}{errors}");
    out.into_owned()
}

#[test]
fn payment_is_booked_once() {
    assert!(run("payment", &[]).contains("the slow worker is refused"));
    let postgres = Postgres::start();
    let output = run("payment", &[&crate::postgres::url(&postgres)]);
    assert!(output.contains("booked by: quick"), "{output}");
}

#[test]
fn settlement_batch_loses_no_order() {
    assert!(run("settlement_batch", &[]).contains("was refused"));
    let folder = tempfile::tempdir().unwrap();
    // The second run continues in the same folder.
    for _ in 0..2 {
        run("settlement_batch", &[folder.path().to_str().unwrap()]);
    }
    let batch = std::fs::read_to_string(folder.path().join("settlement/2026-11-16.csv")).unwrap();
    assert_eq!(batch.lines().count(), 4);
}

#[test]
fn fenced_http_refuses_the_stale_holder() {
    assert!(run("fenced_http", &[]).contains("again: 412"));
}

#[test]
fn replaced_leader_is_refused() {
    let output = run("leader", &[]);
    assert!(
        output.contains("10.0.0.1:8080 leads in epoch") && output.contains("its write is refused"),
        "{output}"
    );
}

#[test]
fn cron_job_runs_on_one_host() {
    let output = run("cron", &[]);
    assert_eq!(output.matches("does the work").count(), 1, "{output}");
    assert_eq!(output.matches("got: 17 files removed by").count(), 5, "{output}");
}
