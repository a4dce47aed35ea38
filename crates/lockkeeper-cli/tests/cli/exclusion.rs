//! Mutual exclusion, shared and counted locks.

use std::process::Stdio;

use crate::support::{Process, Server, until};

#[test]
fn twenty_concurrent_runs_never_overlap() {
    let server = Server::start();
    let script = "echo start $LOCKKEEPER_TOKEN >> log; sleep 0.02; echo end $LOCKKEEPER_TOKEN >> log";
    let mut runs: Vec<Process> =
        (0..20).map(|_| Process::spawn(&mut server.run("job", &[], script))).collect();
    for run in &mut runs {
        assert_eq!(run.code(), 0);
    }
    let log = std::fs::read_to_string(server.path("log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 40);
    let mut last_token = 0;
    for pair in lines.chunks(2) {
        let (start, end) = (pair[0].strip_prefix("start ").unwrap(), pair[1].strip_prefix("end ").unwrap());
        assert_eq!(start, end, "another run between start and end:\n{log}");
        let token: u64 = start.parse().unwrap();
        assert!(token > last_token, "tokens rise:\n{log}");
        last_token = token;
    }
}

#[test]
fn shared_holders_run_together() {
    let server = Server::start();
    // Each ends only when it has seen the other.
    let script = |me: &str, other: &str| format!("touch {me}; while ! [ -e {other} ]; do sleep 0.01; done");
    let mut one = Process::spawn(&mut server.run("job", &["--shared"], &script("a", "b")));
    let mut two = Process::spawn(&mut server.run("job", &["--shared"], &script("b", "a")));
    assert_eq!((one.code(), two.code()), (0, 0));
}

#[test]
fn counted_lock_grants_at_most_its_permits() {
    let server = Server::start();
    let options = ["--capacity", "3", "--permits", "2"];
    let _two = Process::spawn(server.run("job", &options, "exec sleep 1000").stdout(Stdio::null()));
    until("two permits to be taken", || (server.who("job")["holders"][0]["permits"] == 2).then_some(()));
    let one = server.run("job", &["--capacity", "3", "--no-wait"], "true").status().unwrap();
    assert_eq!(one.code(), Some(0), "one is left");
    let two =
        server.run("job", &["--capacity", "3", "--permits", "2", "--no-wait"], "true").status().unwrap();
    assert_eq!(two.code(), Some(75));
    let other = server.run("job", &["--capacity", "4", "--no-wait"], "true").status().unwrap();
    assert_eq!(other.code(), Some(64), "another capacity");
}

#[test]
fn second_run_starts_after_the_first_has_ended() {
    let server = Server::start();
    let mut first =
        Process::spawn(&mut server.run("job", &[], "while ! [ -e go ]; do sleep 0.01; done; echo 1 >> log"));
    until("the first to hold it", || {
        (!server.who("job")["holders"].as_array().unwrap().is_empty()).then_some(())
    });
    let mut second = Process::spawn(&mut server.run("job", &[], "echo 2 >> log"));
    server.until_waiting("job", 1);
    std::fs::write(server.path("go"), "").unwrap();
    assert_eq!((first.code(), second.code()), (0, 0));
    assert_eq!(std::fs::read_to_string(server.path("log")).unwrap(), "1\n2\n");
}

#[test]
fn verbose_run_reports_what_it_waits_for() {
    let server = Server::start();
    let holder = server.hold("job");
    let stderr = server.path("stderr");
    let mut second =
        Process::spawn(server.run("job", &["-v"], "true").stderr(std::fs::File::create(&stderr).unwrap()));
    let line = crate::support::until_line(&stderr);
    assert!(
        line.starts_with("lockkeeper: waiting for \"job\", held by ") && line.contains("position 1 of 1"),
        "{line}"
    );
    drop(holder);
    // The holder was killed, so its lease has to expire.
    assert_eq!(second.code(), 0);
}
