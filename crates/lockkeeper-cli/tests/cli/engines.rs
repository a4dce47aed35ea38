//! `run` and `doctor` on third-party engines, with real servers.

use std::process::Output;

use lockkeeper_testkit::redis::{DURABLE, Redis, instances};

use crate::support::lockkeeper;

fn output(arguments: &[&str]) -> Output {
    lockkeeper().args(arguments).output().unwrap()
}

fn run_and_print_environment(engine: &str, more: &[&str]) -> String {
    let mut arguments = vec!["run", "nightly", "--engine", engine];
    arguments.extend(more);
    arguments.extend([
        "--",
        "sh",
        "-c",
        "echo $LOCKKEEPER_LOCK/${LOCKKEEPER_TOKEN-none}/${LOCKKEEPER_SEQUENCER-none}",
    ]);
    let output = output(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn run_on_redis_provides_a_token_only_if_volatile_tokens_are_accepted() {
    let redis = Redis::with(DURABLE).unwrap();
    let url = format!("redis://{}", redis.address);
    assert_eq!(run_and_print_environment(&url, &[]), "nightly/none/none");
    let fenced = run_and_print_environment(&url, &["--accept-volatile-tokens"]);
    assert!(fenced.starts_with("nightly/1") && fenced.ends_with(":x:nightly"), "{fenced}");
}

#[test]
fn run_on_redlock_is_exclusive_and_returns_the_commands_exit_code() {
    let instances = instances(3, DURABLE).unwrap();
    let hosts: Vec<String> = instances.iter().map(|redis| redis.address.to_string()).collect();
    let url = format!("redlock://{}?timeout_ms=300", hosts.join(","));
    assert_eq!(run_and_print_environment(&url, &[]), "nightly/none/none");
    let inner = format!("{} run nightly --no-wait --engine '{url}' -- true; exit $?", crate::support::BINARY);
    let output = output(&["run", "nightly", "--engine", &url, "--", "sh", "-c", &inner]);
    assert_eq!(output.status.code(), Some(75), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn doctor_exits_with_0_or_with_1_and_findings() {
    let (safe, volatile) = (Redis::with(DURABLE).unwrap(), Redis::with(&["--appendonly", "no"]).unwrap());
    let healthy = output(&["doctor", "--engine", &format!("redis://{}", safe.address)]);
    let text = String::from_utf8_lossy(&healthy.stdout);
    assert_eq!(healthy.status.code(), Some(0), "{text}");
    assert!(text.contains("efficiency") && text.contains("volatile"), "{text}");
    let unhealthy =
        output(&["doctor", "--output", "json", "--engine", &format!("redis://{}", volatile.address)]);
    assert_eq!(unhealthy.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&unhealthy.stdout).unwrap();
    assert_eq!(answer["findings"][0]["code"], "no-persistence");
    assert_eq!(answer["capabilities"]["token"], "volatile");
    let few = output(&["doctor", "--engine", &format!("redlock://{},{}", safe.address, volatile.address)]);
    assert_eq!(few.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&few.stdout).contains("at least 3"));
    let absent = output(&["doctor", "--engine", "redis://127.0.0.1:1", "--connect-timeout", "300ms"]);
    assert_eq!(absent.status.code(), Some(69));
}

#[test]
fn password_on_the_command_line_causes_a_warning() {
    let redis = Redis::with(&[DURABLE, &["--requirepass", "s3cret"]].concat()).unwrap();
    let url = format!("redis://:s3cret@{}", redis.address);
    let warned = output(&["run", "nightly", "--engine", &url, "--", "true"]);
    let words = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(warned.status.success(), "{words}");
    assert!(words.starts_with("warning: ") && words.contains("LOCKKEEPER_ENGINE"), "{words}");
    assert_eq!(words.lines().count(), 1, "{words}");
    assert!(!words.contains("s3cret"), "{words}");
    let quiet =
        lockkeeper().args(["run", "nightly", "--", "true"]).env("LOCKKEEPER_ENGINE", &url).output().unwrap();
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{}", String::from_utf8_lossy(&quiet.stderr));
}
