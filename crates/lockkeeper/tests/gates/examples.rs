//! The examples do what they say, with the command that they name.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::servers::Site;
use crate::servers::postgres::Postgres;

/// The example as `cargo test --examples` has built it, if that was after its last change.
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
            // What cargo says to a test is not meant for another cargo: it would build half of the world anew.
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
fn payment() {
    assert!(run("payment", &[]).contains("the slow worker is refused"));
    let postgres = Postgres::start();
    let told = run("payment", &[&crate::postgres::url(&postgres)]);
    assert!(told.contains("booked by: quick"), "{told}");
}

#[test]
fn settlement_batch() {
    assert!(run("settlement_batch", &[]).contains("was refused"));
    let folder = tempfile::tempdir().unwrap();
    // Again in the same folder: it goes on from what is there.
    for _ in 0..2 {
        run("settlement_batch", &[folder.path().to_str().unwrap()]);
    }
    let batch = std::fs::read_to_string(folder.path().join("settlement/2026-11-16.csv")).unwrap();
    assert_eq!(batch.lines().count(), 4);
}

#[test]
fn fenced_http() {
    assert!(run("fenced_http", &[]).contains("once more: 412"));
}

#[test]
fn leader() {
    let told = run("leader", &[]);
    assert!(told.contains("10.0.0.1:8080 leads in epoch") && told.contains("its write is refused"), "{told}");
}

#[test]
fn cron() {
    let told = run("cron", &[]);
    assert_eq!(told.matches("does the work").count(), 1, "{told}");
    assert_eq!(told.matches("knows: 17 files removed by").count(), 5, "{told}");
}
