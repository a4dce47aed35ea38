//! `history`, `top` and `explain`.

use std::process::Stdio;

use crate::support::{Process, Server, dead_engine, text, until};

fn table(server: &Server, words: &[&str]) -> String {
    let output = server.output(words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    text(&output.stdout)
}

/// Waits in the queue until dropped.
fn wait_for(server: &Server, name: &str, owner: &str, place: u64) -> Process {
    let waiter = Process::spawn(
        server.run(name, &["--owner", owner], "true").stdout(Stdio::null()).stderr(Stdio::null()),
    );
    server.until_waiting(name, place);
    waiter
}

#[test]
fn history_survives_a_restart() {
    let mut server = Server::start();
    assert_eq!(table(&server, &["history", "job"]), "no events recorded for \"job\"\n");
    assert!(server.run("job", &["--owner", "first"], "true").status().unwrap().success());
    let _holder = server.hold("job");
    server.output(&["force-release", "job", "--reason", "it hangs"]);
    server.kill();
    server.restart();

    let answer = server.json(&["history", "job"]);
    let events: Vec<&str> =
        answer["events"].as_array().unwrap().iter().map(|event| event["what"].as_str().unwrap()).collect();
    assert_eq!((&answer["lock"], events), (&"job".into(), vec!["forced", "granted", "released", "granted"]));
    assert_eq!(answer["events"][0]["reason"], "it hangs");
    assert_eq!(answer["events"][3]["owner"], "first");
    let shown = table(&server, &["history", "job"]);
    for word in ["WHEN", "EVENT", "force-released", "it hangs", "released", "first", "no wait"] {
        assert!(shown.contains(word), "{word}:\n{shown}");
    }
    assert_eq!(table(&server, &["history", "job", "--limit", "1"]).lines().count(), 2);

    let acts = server.json(&["history"]);
    assert_eq!(
        (&acts["acts"][0]["what"], &acts["acts"][0]["lock"]),
        (&"force_release".into(), &"job".into())
    );
    let shown = table(&server, &["history"]);
    assert!(
        shown.contains("force-released \"job\": 1 holder,") && shown.contains("members changed to 1"),
        "{shown}"
    );
}

#[test]
fn top_shows_contention() {
    let server = Server::start();
    assert!(table(&server, &["top", "--once"]).contains("no waiters"));
    let _quiet = server.hold("quiet");
    let _busy = server.hold("busy");
    let _waits = wait_for(&server, "busy", "a patient one", 1);
    // Without a terminal it prints once, even without --once.
    let shown = table(&server, &["top"]);
    for word in ["node 1 leads", "2 held, 1 waiting", "last hour: 2 grants", "MOST CONTENDED", "LONGEST HELD"]
    {
        assert!(shown.contains(word), "{word}:\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "escape sequences without a terminal");
    let view = server.json(&["top"]);
    assert_eq!(view["top"]["contended"][0]["lock"], "busy");
    assert_eq!(view["top"]["longest_held"][0]["lock"], "quiet");
    assert_eq!(view["status"]["leader"], 1);
}

#[test]
fn top_is_live_in_a_terminal_and_restores_it() {
    let server = Server::start();
    let seen = server.path("seen");
    let command = format!("{} top --every 100ms", crate::support::BINARY);
    let mut terminal = Process::spawn(
        std::process::Command::new("script")
            .args(["-qfc", &command])
            .arg(&seen)
            .env("LOCKKEEPER_ENGINE", server.engine())
            .stdin(Stdio::piped())
            .stdout(Stdio::null()),
    );
    let shown = || std::fs::read(&seen).map(|bytes| text(&bytes)).unwrap_or_default();
    until("the first view", || shown().contains("no locks held").then_some(()));
    let _holder = server.hold("job");
    until("the lock on the screen", || shown().contains("job").then_some(()));
    terminal.write("\x03");
    assert_eq!(terminal.code(), 0);
    until("the end of the alternate screen", || shown().contains("\x1b[?1049l").then_some(()));
}

#[test]
fn slow_acquire_is_logged_as_json() {
    let server = Server::start_with(&["--log-format", "json", "--slow-acquire", "1ms"]);
    let mut holder = server.hold("job");
    let mut waiter = wait_for(&server, "job", "a patient\none", 1);
    until("a millisecond of waiting", || {
        (server.who("job")["queue"][0]["waited_ms"].as_u64() > Some(1)).then_some(())
    });
    holder.signal(rustix::process::Signal::TERM);
    holder.ended();
    assert_eq!(waiter.code(), 0);
    let line = until("the line", || {
        let log = std::fs::read_to_string(server.data_dir().with_extension("stderr")).unwrap();
        log.lines().find(|line| line.contains("slow acquire")).map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["level"], &line["fields"]["lock"]), (&"WARN".into(), &"\"job\"".into()));
    assert_eq!(line["fields"]["owner"], "\"a patient\\none\"", "the owner cannot forge a log line");
    assert!(line["fields"]["waited_ms"].as_u64() >= Some(1), "{line}");
}

#[test]
fn explain_names_the_holder_and_earlier_waiters() {
    let server = Server::start();
    assert!(table(&server, &["explain", "job"]).contains("\"job\" is free"));
    let _holder = server.hold("job");
    let _first = wait_for(&server, "job", "first in line", 1);
    let _second = wait_for(&server, "job", "second in line", 2);
    let shown = table(&server, &["explain", "job"]);
    for word in
        ["\"job\" is held by", "token 1", "2 waiters, the first for ", "first in line, second in line"]
    {
        assert!(shown.contains(word), "{word}:\n{shown}");
    }
    let shown = table(&server, &["explain", "job", "--owner", "second"]);
    assert!(
        shown.contains("is number 2 in the queue") && shown.contains("ahead of it: first in line"),
        "{shown}"
    );
    let shown = table(&server, &["explain", "job", "--owner", "nobody"]);
    assert!(shown.contains("No waiter has an owner that contains \"nobody\""), "{shown}");
    let answer = server.json(&["explain", "job"]);
    assert_eq!(answer["lock"]["waiting"], 2);
    assert_eq!(answer["blocked"][0]["lock"], "job");
    assert!(answer["sentences"].as_array().unwrap().len() >= 2, "{answer}");

    let dead = dead_engine();
    let output = server.output(&["explain", "job", "--engine", &dead, "--connect-timeout", "200ms"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
}
