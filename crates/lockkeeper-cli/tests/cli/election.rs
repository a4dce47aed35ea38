//! `elect`, `observe` and `run --once-per`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Process, Server, lockkeeper, until, until_line};

fn elect(server: &Server, value: &str, script: &str) -> Process {
    let mut command = server.cli(&["elect"]);
    command.args(["db", "--value", value, "--ttl", "2s", "--", "sh", "-c", script]);
    Process::spawn(command.stdout(Stdio::null()))
}

#[test]
fn next_candidate_takes_over_and_observers_see_every_change() {
    let server = Server::start();
    let mut command = server.cli(&["observe"]);
    let mut observer = Process::spawn(command.args(["db", "--output", "json"]).stdout(Stdio::piped()));
    let mut lines = BufReader::new(observer.0.stdout.take().unwrap()).lines();
    let mut seen = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(seen()["leader"], Value::Null);

    let script = "echo $LOCKKEEPER_EPOCH $LOCKKEEPER_LOCK > leads-$0; exec sleep 1000";
    let first = elect(&server, "one", &script.replace("$0", "one"));
    let leads = until_line(&server.path("leads-one"));
    let leader = seen()["leader"].clone();
    assert_eq!(leader["value"], "one");
    assert_eq!(leads, format!("{} election/db", leader["epoch"]));
    let _second = elect(&server, "two", &script.replace("$0", "two"));
    until("the second candidate", || (server.who("election/db")["waiting"] == 1).then_some(()));
    assert!(!server.path("leads-two").exists());
    let output = server.cli(&["observe"]).args(["db", "--once"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("one  epoch "), "{output:?}");

    // The leader ends: the next candidate leads.
    first.signal(Signal::TERM);
    let next = seen()["leader"].clone();
    assert_eq!(next["value"], "two");
    assert!(next["epoch"].as_u64() > leader["epoch"].as_u64());
    until_line(&server.path("leads-two"));
    // A force-released leader has no successor here.
    let output = server.cli(&["force-release"]).args(["election/db", "--reason", "test"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(seen()["leader"], Value::Null);
    let output = server.cli(&["observe"]).args(["db", "--once"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn slot_runs_once_across_all_hosts() {
    let server = Server::start();
    let slot = |script: &str| {
        let mut command = server.run("cleanup", &["--once-per", "1000d"], script);
        command.stderr(Stdio::piped());
        Process::spawn(&mut command)
    };
    // A failed run leaves the slot to the next host.
    assert_eq!(slot("exit 3").code(), 3);
    let mut hosts: Vec<Process> = (0..6).map(|_| slot("echo $LOCKKEEPER_TOKEN >> ran")).collect();
    let mut skipped = 0;
    for host in &mut hosts {
        assert_eq!(host.code(), 0);
        skipped += usize::from(host.stderr_text().contains("was already run by"));
    }
    let ran = std::fs::read_to_string(server.path("ran")).unwrap();
    assert_eq!((ran.lines().count(), skipped), (1, 5), "{ran}");
    // The next slot runs again.
    let mut again = server.run("short", &["--once-per", "1ms"], "echo again >> short");
    for _ in 0..2 {
        assert!(again.status().unwrap().success());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(std::fs::read_to_string(server.path("short")).unwrap().lines().count(), 2);
    let output =
        lockkeeper().args(["run", "x", "--once-per", "1h", "--shared", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}
