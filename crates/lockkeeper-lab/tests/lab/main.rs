//! `lockkeeper-lab` with real servers and real faults: the expected counts.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

mod compare;

/// The lab, with the binary `lockkeeper` next to it, which `cargo test --workspace` builds as well.
fn program() -> Command {
    let lab = Path::new(env!("CARGO_BIN_EXE_lockkeeper-lab"));
    let lockkeeper = lab.with_file_name("lockkeeper");
    assert!(
        lockkeeper.exists(),
        "{} does not exist: run cargo build -p lockkeeper-cli --all-features",
        lockkeeper.display()
    );
    let mut command = Command::new(lab);
    command.env("LOCKKEEPER_BIN", lockkeeper).stdin(Stdio::null());
    command
}

fn lab(words: &[&str]) -> Output {
    program().args(words).output().unwrap()
}

/// The runs of a scenario, as JSON, and the exit code.
fn runs(words: &[&str]) -> (Vec<Value>, Option<i32>) {
    let output = lab(&[words, &["--output", "json"]].concat());
    let answer: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert!(!answer["versions"].as_array().unwrap().is_empty(), "{answer}");
    (answer["runs"].as_array().unwrap().clone(), output.status.code())
}

/// Paused holders: with a gate nothing is lost, without one every pair loses an update.
fn paused_holders(engine: &str) {
    let (runs, code) = runs(&["run", "pause", "--engine", engine]);
    let [fenced, unfenced] = runs.as_slice() else { panic!("{runs:?}") };
    assert_eq!((&fenced["mode"], &unfenced["mode"]), (&"fenced".into(), &"unfenced".into()));
    assert_eq!(fenced["lost_updates"], 0, "{fenced}");
    assert_eq!(fenced["refused"], 3, "{fenced}");
    assert_eq!(unfenced["lost_updates"], 3, "{unfenced}");
    assert_eq!(unfenced["acknowledged"], 6, "{unfenced}");
    // The guards of the library had expired when the next grant was made.
    assert_eq!((&fenced["double_holders"], &unfenced["double_holders"]), (&0.into(), &0.into()), "{runs:?}");
    assert_eq!(code, Some(0), "{runs:?}");
    let timeline = unfenced["timeline"].as_array().unwrap();
    let times: Vec<u64> = timeline.iter().map(|event| event["at_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{timeline:?}");
    let wiped = timeline.iter().filter(|event| event["event"] == "wrote" && event["wiped"] == 1);
    assert_eq!(wiped.count(), 3, "{timeline:?}");
}

#[test]
fn paused_holders_on_a_cell_lose_nothing_behind_a_gate() {
    paused_holders("cell");
}

#[test]
fn paused_holders_on_redis_lose_nothing_behind_a_gate() {
    paused_holders("redis");
}

#[test]
fn clock_jump_gives_redlock_two_holders() {
    let (runs, code) = runs(&["run", "clock-jump", "--engine", "redlock", "--unfenced"]);
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0]["double_holders"], 1, "{runs:?}");
    assert_eq!(runs[0]["lost_updates"], 1, "{runs:?}");
    assert_eq!(code, Some(0));
}

#[test]
fn only_the_naive_recipe_releases_the_lock_of_another() {
    let (naive, _) = runs(&["run", "wrong-release", "--engine", "naive", "--unfenced"]);
    assert!(naive[0]["double_holders"].as_u64().unwrap() > 0, "{naive:?}");
    assert_eq!(naive[0]["lost_updates"], 1, "{naive:?}");
    let (library, _) = runs(&["run", "wrong-release", "--engine", "redis", "--unfenced"]);
    assert_eq!(library[0]["double_holders"], 0, "{library:?}");
    assert_eq!(library[0]["lost_updates"], 0, "{library:?}");
}

#[test]
fn volatile_redis_has_double_holders_after_a_crash() {
    let (runs, _) = runs(&["run", "server-crash", "--engine", "redis", "--unfenced"]);
    assert_eq!(runs[0]["double_holders"], 3, "{runs:?}");
    assert_eq!(runs[0]["lost_updates"], 3, "{runs:?}");
}

#[test]
fn cell_keeps_its_locks_when_its_leader_is_killed() {
    let (runs, code) = runs(&["run", "failover", "--engine", "cell"]);
    for run in &runs {
        assert_eq!((&run["double_holders"], &run["lost_updates"]), (&0.into(), &0.into()), "{run}");
        assert_eq!(run["acknowledged"], 6, "{run}");
    }
    assert_eq!(code, Some(0), "{runs:?}");
}

#[test]
fn report_has_a_page_for_each_scenario_and_a_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let (report, matrix) = (folder.path().join("report"), folder.path().join("lab.md"));
    let words = ["all", "--scenarios", "wrong-release,clock-jump", "--engines", "naive", "--report"];
    let words = [&words[..], &[report.to_str().unwrap(), "--matrix", matrix.to_str().unwrap()]].concat();
    let output = lab(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read =
        |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let index = read(&report.join("index.html"));
    assert!(
        index.contains("href=\"wrong-release.html\"") && index.contains("href=\"clock-jump.html\""),
        "{index}"
    );
    let page = read(&report.join("wrong-release.html"));
    assert!(page.contains("<svg") && page.contains("overwrites 1 of others' updates"), "{page}");
    let page = read(&report.join("clock-jump.html"));
    assert!(!page.contains("<svg") && page.contains("Does not apply"), "{page}");
    let matrix = read(&matrix);
    assert!(matrix.contains("| wrong-release | unfenced |") && matrix.contains("lost 1 of 2"), "{matrix}");
    assert!(matrix.contains("- fenced on naive: "), "the reason is missing: {matrix}");
    // Progress is printed while it runs.
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("[2/4] wrong-release on naive, unfenced"),
        "{output:?}"
    );
}

#[test]
fn unknown_name_is_refused_with_the_list_of_names() {
    for words in [&["run", "earthquake"][..], &["run", "pause", "--engine", "abacus"]] {
        let output = lab(words);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let wanted = if words.len() == 2 { "clock-jump" } else { "zookeeper" };
        assert!(message.contains(wanted), "{message}");
    }
    let output = lab(&["run", "pause", "--engine", "redlock", "--fenced"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("has no token"), "{output:?}");
}

#[test]
fn missing_server_fails_the_run_unless_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let all = |more: &[&str]| {
        let words = ["all", "--scenarios", "pause", "--engines", "redis", "--report"];
        let mut command = program();
        command.args(words).arg(&report).args(more).env("PATH", folder.path());
        command.output().unwrap()
    };
    let strict = all(&[]);
    assert_eq!(strict.status.code(), Some(1), "{strict:?}");
    let message = String::from_utf8_lossy(&strict.stdout).into_owned();
    assert!(
        message.contains("not run: redis-server is not installed: apt-get install redis-server"),
        "{message}"
    );
    assert_eq!(all(&["--allow-missing"]).status.code(), Some(0));
}
