//! `ls`, `who`, `status` and `force-release`: tables, and JSON with the field names of the HTTP API.

use std::process::Stdio;

use crate::support::{Process, Server, text};

fn table(server: &Server, words: &[&str]) -> String {
    let output = server.output(words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    text(&output.stdout)
}

fn keys(value: &serde_json::Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn has_keys(value: &serde_json::Value, wanted: &[&str]) {
    for key in wanted {
        assert!(keys(value).contains(key), "{key} is missing in {value}");
    }
}

#[test]
fn who_shows_holders_and_waiters() {
    let server = Server::start();
    let _holder = server.hold("job");
    let _waiter = Process::spawn(
        server.run("job", &["--owner", "a patient one", "--shared"], "true").stderr(Stdio::null()),
    );
    server.until_waiting("job", 1);

    let lock = server.who("job");
    has_keys(&lock, &["lock", "capacity", "last_token", "holders", "queue"]);
    has_keys(&lock["holders"][0], &["session", "token", "mode", "owner", "held_ms"]);
    has_keys(&lock["queue"][0], &["session", "position", "mode", "owner", "waited_ms"]);
    assert_eq!((&lock["lock"], &lock["capacity"]), (&"job".into(), &1.into()));
    assert_eq!(lock["holders"][0]["mode"], "exclusive");
    assert_eq!(lock["holders"][0]["token"], lock["last_token"]);
    let version = env!("CARGO_PKG_VERSION");
    let label = format!("/sh/lockkeeper-{version}");
    assert!(lock["holders"][0]["owner"].as_str().unwrap().ends_with(&label), "{lock}");
    assert_eq!(lock["queue"][0]["owner"], "a patient one");
    assert_eq!(lock["queue"][0]["mode"], "shared");
    assert_eq!(lock["queue"][0]["position"], 1);

    let shown = table(&server, &["who", "job"]);
    for word in ["\"job\" is held", "HOLDER", "exclusive", "WAITER", "a patient one", "shared"] {
        assert!(shown.contains(word), "{word}:\n{shown}");
    }
}

#[test]
fn free_lock_is_not_an_error() {
    let server = Server::start();
    assert!(table(&server, &["who", "job"]).contains("\"job\" is free"));
    let lock = server.who("job");
    assert_eq!(lock["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn ls_lists_by_prefix_and_limit() {
    let server = Server::start();
    assert_eq!(table(&server, &["ls"]), "no locks in use\n");
    let _holders: Vec<Process> = ["a/1", "a/2", "b/1"].iter().map(|name| server.hold(name)).collect();

    let names = |words: &[&str]| -> Vec<String> {
        let page = server.json(words);
        page["locks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|lock| lock["lock"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&["ls"]), ["a/1", "a/2", "b/1"]);
    assert_eq!(names(&["ls", "a/"]), ["a/1", "a/2"]);
    assert_eq!(names(&["ls", "--limit", "2"]), ["a/1", "a/2"]);
    assert_eq!(names(&["ls", "c/"]), [""; 0]);

    let shown = table(&server, &["ls", "a/"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    for word in ["NAME", "OWNER", "TOKEN", "MODE", "HELD FOR", "WAITING"] {
        assert!(lines[0].contains(word), "{word}");
    }
    assert!(lines[1].starts_with("a/1") && lines[1].contains("exclusive"), "{shown}");
    let output = server.output(&["ls", "--limit", "1"]);
    assert!(text(&output.stderr).contains("more locks exist"), "{output:?}");
}

#[test]
fn status_shows_leader_members_and_counts() {
    let server = Server::start();
    let _holder = server.hold("job");
    let status = server.json(&["status"]);
    has_keys(
        &status,
        &["cell", "members", "leader", "term", "sessions", "locks_held", "last_token", "last_log_index"],
    );
    assert_eq!(
        (&status["leader"], &status["locks_held"], &status["sessions"]),
        (&1.into(), &1.into(), &1.into())
    );
    let shown = table(&server, &["status"]);
    for word in ["node 1, term", "1 held, 0 waiting", "MEMBER", "leader"] {
        assert!(shown.contains(word), "{word}:\n{shown}");
    }
}

#[test]
fn force_release_raises_the_token_and_does_not_ask_without_a_terminal() {
    let server = Server::start();
    let mut holder = server.hold("job");
    let before = server.who("job")["last_token"].as_u64().unwrap();
    let answer = server.json(&["force-release", "job", "--reason", "a test"]);
    has_keys(&answer, &["lock", "released", "last_token"]);
    assert_eq!(answer["released"], true);
    assert!(answer["last_token"].as_u64().unwrap() > before);
    assert_eq!(holder.code(), 70);
    assert!(table(&server, &["force-release", "job"]).contains("nobody held \"job\""));
}

#[test]
fn engine_url_accepts_several_hosts() {
    let server = Server::start();
    let dead = crate::support::dead_engine();
    let engine = format!("{dead},{}", server.address);
    let output = server.output(&["status", "--engine", &engine]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn engine_and_output_are_accepted_before_and_after_the_verb() {
    let server = Server::start();
    let engine = server.engine();
    let expected = server.output(&["ls", "--output", "json"]).stdout;
    for words in [
        ["-o", "json", "--engine", &engine, "ls"],
        ["--engine", &engine, "ls", "-o", "json"],
        ["ls", "-o", "json", "--engine", &engine],
    ] {
        let output = crate::support::lockkeeper().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        assert_eq!(text(&output.stdout), text(&expected), "{words:?}");
    }
}
