//! Exit codes and environment: what scripts rely on.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Process, Server, dead_engine, lockkeeper, text};

#[test]
fn exit_code_of_the_command_is_returned() {
    let server = Server::start();
    for code in [0, 1, 3, 70, 255] {
        let output = server.run("job", &[], &format!("exit {code}")).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(text(&output.stderr), "");
    }
    assert_eq!(server.who("job")["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn command_killed_by_a_signal_returns_128_plus_n() {
    let server = Server::start();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("USR1", 138)] {
        let status = server.run("job", &[], &format!("kill -{signal} $$; sleep 100")).status().unwrap();
        assert_eq!(status.code(), Some(code), "{signal}");
    }
}

#[test]
fn command_gets_lock_token_and_sequencer_in_its_environment() {
    let server = Server::start();
    let script = "echo \"$LOCKKEEPER_LOCK|$LOCKKEEPER_TOKEN|$LOCKKEEPER_SEQUENCER|$LOCKKEEPER_ENGINE|$KEPT\"";
    let mut last_token = 0;
    for _ in 0..2 {
        let output = server.run("a b/ä", &[], script).env("KEPT", "yes").output().unwrap();
        let line = text(&output.stdout);
        let fields: Vec<&str> = line.trim().split('|').collect();
        let [lock, token, sequencer, engine, kept] = fields[..] else { panic!("{line}") };
        assert_eq!((lock, engine, kept), ("a b/ä", server.engine().as_str(), "yes"));
        let token: u64 = token.parse().unwrap();
        assert!(token > last_token, "tokens rise");
        // One word, whatever characters the name contains.
        assert!(sequencer.contains(&token.to_string()) && sequencer.contains("a%20b/%C3%A4"), "{sequencer}");
        last_token = token;
    }
    assert_eq!(server.who("a b/ä")["last_token"], last_token);
}

#[test]
fn busy_lock_exits_with_75_and_names_the_holder() {
    let server = Server::start();
    let _holder = server.hold("job");
    for options in [&["--no-wait"][..], &["--wait", "0s"]] {
        let output = server.run("job", options, "echo must not run").output().unwrap();
        assert_eq!(output.status.code(), Some(75));
        assert_eq!(text(&output.stdout), "");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("\"job\" is busy, held by") && stderr.contains("--wait 30s"), "{stderr}");
    }
    let output = server.run("job", &["--no-wait", "--output", "json"], "true").output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "busy");
}

#[test]
fn timed_out_wait_exits_with_124() {
    let server = Server::start();
    let _holder = server.hold("job");
    let began = Instant::now();
    let output = server.run("job", &["--wait", "300ms"], "echo must not run").output().unwrap();
    assert_eq!(output.status.code(), Some(124));
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(text(&output.stderr).contains("did not become free within 300 ms, held by"), "{output:?}");
    assert_eq!(server.who("job")["waiting"], 0);
}

#[test]
fn unreachable_engine_exits_with_69_quickly() {
    for verb in
        [&["run", "job", "--", "true"][..], &["ls"], &["who", "x"], &["status"], &["force-release", "x"]]
    {
        let began = Instant::now();
        let output = lockkeeper().args(verb).env("LOCKKEEPER_ENGINE", dead_engine()).output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        assert!(text(&output.stderr).contains("lockkeeper serve"), "{output:?}");
    }
    let output = lockkeeper()
        .args(["ls", "--output", "json", "--connect-timeout", "100ms", "--engine", &dead_engine()])
        .output()
        .unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "unavailable");
}

#[test]
fn wrong_usage_exits_with_64() {
    let server = Server::start();
    for words in [
        &[][..],
        &["no-such-verb"],
        &["run"],
        &["run", "job"],
        &["run", "job", "true"],
        &["run", "job", "--ttl", "10", "--", "true"],
        &["run", "job", "--wait", "1s", "--no-wait", "--", "true"],
        &["run", "job", "--permits", "2", "--", "true"],
        &["run", "job", "--ttl", "2s", "--kill-after", "1500ms", "--", "true"],
        &["run", "job", "--ttl", "1ms", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "job", "--engine", "mysql://x", "--", "true"],
        &["who"],
        &["who", ""],
        &["ls", "--output", "yaml"],
        &["serve", "--cell", "nonsense"],
    ] {
        let output = server.output(words);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
    let output = server.output(&["who", "--output", "json"]);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "invalid");
}

#[test]
fn help_and_version_exit_with_0() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["serve", "--help"],
        &["force-release", "--help"],
    ] {
        let output = lockkeeper().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty());
    }
    let help = text(&lockkeeper().args(["run", "--help"]).output().unwrap().stdout);
    for word in ["LOCKKEEPER_TOKEN", "75", "124", "--keep-group", "no limit"] {
        assert!(help.contains(word), "{word}");
    }
    assert!(!help.contains("__child"));
}

#[test]
fn command_that_cannot_be_started_exits_with_126_or_127() {
    let server = Server::start();
    let output = server.output(&["run", "job", "--", "no-such-command-at-all"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("command not found"), "{output:?}");
    let output = server.output(&["run", "job", "--output", "json", "--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(126));
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "command_not_executable");
    assert_eq!(server.who("job")["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn command_inherits_stdin_stdout_and_stderr() {
    let server = Server::start();
    let mut run = Process::spawn(
        server
            .run("job", &[], "cat; echo done >&2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    let big = "0123456789\n".repeat(20_000);
    let writer = std::thread::spawn({
        let (mut stdin, big) = (run.stdin.take().unwrap(), big.clone());
        move || std::io::Write::write_all(&mut stdin, big.as_bytes()).unwrap()
    });
    assert!(run.stdout_text() == big);
    assert_eq!(run.stderr_text(), "done\n");
    writer.join().unwrap();
    assert_eq!(run.code(), 0);
}

#[test]
fn closed_stdout_is_not_an_error() {
    let server = Server::start();
    let mut ls = Process::spawn(server.cli(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()));
    drop(ls.stdout.take());
    assert_eq!(ls.code(), 0);
    assert_eq!(ls.stderr_text(), "");
}
