//! The binary on every engine, with real servers: the same verbs, the same exit codes.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[allow(dead_code, reason = "the conformance suite of the library uses all of it")]
#[path = "../../../lockkeeper/tests/conformance/child.rs"]
mod child;
#[allow(dead_code, reason = "the same")]
#[path = "../../../lockkeeper/tests/conformance/servers/mod.rs"]
mod servers;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use servers::Site;

const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

fn lockkeeper(engine: &str, words: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(words).env("LOCKKEEPER_ENGINE", engine).stdin(Stdio::null());
    command.output().unwrap()
}

fn json(engine: &str, words: &[&str]) -> Value {
    let output = lockkeeper(engine, &[words, &["--output", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {output:?}"))
}

/// A TTL that every engine accepts.
const TTL: &[&str] = &["--ttl", "10s"];

/// The findings of `doctor`. Its exit code must match them.
fn findings(engine: &str) -> Vec<String> {
    let output = lockkeeper(engine, &["doctor", "--output", "json"]);
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let found: Vec<String> = diagnosis["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["code"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(output.status.code(), Some(i32::from(!found.is_empty())), "{output:?}");
    found
}

#[test]
fn doctor_detects_a_pooler() {
    let postgres = servers::postgres::Postgres::start();
    let bouncer = servers::pgbouncer::PgBouncer::start(&postgres, "transaction");
    assert_eq!(findings(&bouncer.url("session")), ["refused"]);
    assert_eq!(findings(&bouncer.url("transaction")), ["pooler"]);
}

fn every_verb<S: Site>() {
    let site = S::start();
    let url = site.url();
    let capabilities = json(&url, &["doctor"])["capabilities"].clone();
    assert_eq!(findings(&url), S::FINDINGS);
    let fences = capabilities["token"] == "durable";

    // The command gets a token if the engine can fence, and its exit code is returned.
    let script = "echo $LOCKKEEPER_LOCK ${LOCKKEEPER_TOKEN-none}; exit 7";
    let ran = lockkeeper(&url, &[&["run", "nightly"], TTL, &["--", "sh", "-c", script]].concat());
    let output_text = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    let token = output_text.strip_prefix("nightly ").unwrap_or_else(|| panic!("{ran:?}"));
    assert_eq!(token.parse::<u64>().is_ok(), fences, "{output_text}");

    // Others are excluded meanwhile, and the holder is visible if the engine supports `who`.
    let inner = format!(
        "{BINARY} run nightly --ttl 10s --no-wait -- true; echo busy $?; {BINARY} run nightly --ttl 10s --wait 300ms -- true; \
         echo timeout $?; {BINARY} who nightly --output json"
    );
    let ran =
        lockkeeper(&url, &[&["run", "nightly", "--owner", "me"], TTL, &["--", "sh", "-c", &inner]].concat());
    let output_text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(output_text.starts_with("busy 75\ntimeout 124\n"), "{ran:?}");
    if capabilities["who"] == true {
        let seen: Value =
            serde_json::from_str(output_text.trim_start_matches("busy 75\ntimeout 124\n")).unwrap();
        assert_eq!(seen["holders"][0]["owner"], "me", "{seen}");
    }

    if capabilities["elections"] == true && fences {
        let inner = format!("echo $LOCKKEEPER_EPOCH; {BINARY} observe db --once --output json");
        let words =
            [&["elect", "db", "--value", "v", "--owner", "me"], TTL, &["--", "sh", "-c", &inner]].concat();
        let ran = lockkeeper(&url, &words);
        let output_text = String::from_utf8_lossy(&ran.stdout).into_owned();
        let (epoch, leader) = output_text.split_once('\n').unwrap_or_else(|| panic!("{ran:?}"));
        let leader: Value = serde_json::from_str(leader).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert_eq!(leader["leader"]["epoch"].to_string(), epoch, "{leader}");
        assert_eq!((&leader["leader"]["value"], &leader["leader"]["owner"]), (&"v".into(), &"me".into()));
    }
    let unreachable =
        lockkeeper(&site.url_at(&[servers::free_address()]), &["run", "x", "--no-wait", "--", "true"]);
    let code = unreachable.status.code();
    assert!(code == Some(69) || (code == Some(64) && url.starts_with("redlock")), "{unreachable:?}");
}

macro_rules! engines {
    ($($name:ident: $site:ty,)*) => { $(
        #[test]
        fn $name() {
            every_verb::<$site>();
        }
    )* };
}

servers::each_engine!(engines);
