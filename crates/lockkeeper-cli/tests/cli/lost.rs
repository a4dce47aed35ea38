//! Lost leases: the command ends before the lease does.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::{Process, Server, is_alive, until, until_line};

const TTL: Duration = Duration::from_secs(2);

/// A command and its child that ignore TERM and append time stamps while they are alive.
const STUBBORN: &str = "trap 'date +%s%N >> term' TERM; \
    sh -c 'trap \"\" TERM; echo $$ > grandchild; while :; do date +%s%N >> alive-2; sleep 0.01; done' & \
    echo $$ > child; while :; do date +%s%N >> alive-1; sleep 0.01; done";

fn nanos_now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// The time stamps in a file. KILL may have truncated the last one.
fn stamps(server: &Server, file: &str) -> Vec<u128> {
    let text = std::fs::read_to_string(server.path(file)).unwrap();
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| line.trim().parse().unwrap())
        .collect()
}

/// The last line: shells of the test may print messages before it.
fn last_line(text: &str) -> &str {
    text.lines().last().unwrap()
}

/// Breaks the server, and requires that the group ends before the lease does.
fn command_ends_before_the_deadline(break_server: impl FnOnce(&mut Server)) {
    let mut server = Server::start();
    let mut run = Process::spawn(server.run("job", &["--ttl", "2s"], STUBBORN).stderr(Stdio::piped()));
    let child = until_line(&server.path("child"));
    let grandchild = until_line(&server.path("grandchild"));
    until("signs of life", || server.path("alive-2").exists().then_some(()));
    break_server(&mut server);
    let gone_at = nanos_now();
    assert_eq!(run.code(), 70, "lost");
    assert!(!is_alive(&child) && !is_alive(&grandchild));
    // No renewal succeeds afterwards, so the lease ends at most one TTL later.
    let lease_end = gone_at + TTL.as_nanos();
    assert!(nanos_now() < lease_end + 1_000_000_000, "run did not end soon after the lease");
    for file in ["alive-1", "alive-2"] {
        let last = *stamps(&server, file).last().unwrap();
        assert!(last < lease_end, "{file} still worked after the lease");
        assert!(last > gone_at + TTL.as_nanos() / 4, "{file} was ended much too early");
    }
    let term = stamps(&server, "term")[0];
    assert!(term > gone_at, "TERM was sent before the server failed");
    assert!(
        term < lease_end - 200_000_000,
        "TERM left too little time to end: {} ms",
        (lease_end - term) / 1_000_000
    );
    let stderr = run.stderr_text();
    assert!(
        stderr.contains("\"job\" was lost: it could not be renewed in time; the command was ended"),
        "{stderr}"
    );
}

#[test]
fn command_is_ended_when_the_server_is_killed() {
    command_ends_before_the_deadline(Server::kill);
}

#[test]
fn command_is_ended_when_the_server_hangs() {
    command_ends_before_the_deadline(|server| server.signal(Signal::STOP));
}

#[test]
fn lost_lease_exits_with_70_even_if_the_command_exits_with_0() {
    let mut server = Server::start();
    let script = "trap 'exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    let mut run = Process::spawn(server.run("job", &["--ttl", "1s"], script).stderr(Stdio::null()));
    until("the command", || server.path("ready").exists().then_some(()));
    server.kill();
    assert_eq!(run.code(), 70);
}

#[test]
fn short_outage_is_survived() {
    let mut server = Server::start();
    let script = "echo > ready; while ! [ -e go ]; do sleep 0.01; done; exit 6";
    let mut run = Process::spawn(&mut server.run("job", &["--ttl", "10s"], script));
    until("the command", || server.path("ready").exists().then_some(()));
    let before = server.who("job")["holders"][0]["token"].clone();
    server.kill();
    server.restart();
    until("the holder to be back", || (server.who("job")["holders"][0]["token"] == before).then_some(()));
    std::fs::write(server.path("go"), "").unwrap();
    assert_eq!(run.code(), 6);
    server.until_free("job");
}

#[test]
fn force_release_ends_the_command() {
    let server = Server::start();
    let options = ["--ttl", "20s", "--kill-after", "500ms", "--output", "json"];
    let mut run = Process::spawn(server.run("job", &options, STUBBORN).stderr(Stdio::piped()));
    let child = until_line(&server.path("child"));
    let grandchild = until_line(&server.path("grandchild"));
    let began = Instant::now();
    let answer = server.json(&["force-release", "job", "--reason", "a test"]);
    assert_eq!(answer["released"], true);
    assert_eq!(run.code(), 70);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(400), "TERM had no time: {took:?}");
    assert!(took < Duration::from_secs(10), "it waited for the TTL: {took:?}");
    assert!(server.path("term").exists());
    assert!(!is_alive(&child) && !is_alive(&grandchild));
    let error: serde_json::Value = serde_json::from_str(last_line(&run.stderr_text())).unwrap();
    assert_eq!(error["error"]["code"], "lost");
    assert!(error["error"]["message"].as_str().unwrap().contains("taken away by force"), "{error}");
}

#[test]
fn command_dies_with_run() {
    let server = Server::start();
    let mut run = Process::spawn(
        server.run("job", &["--ttl", "1s"], "echo $$ > child; exec sleep 1000").stderr(Stdio::null()),
    );
    let child = until_line(&server.path("child"));
    run.kill().unwrap();
    run.wait().unwrap();
    until("the command to die with it", || (!is_alive(&child)).then_some(()));
    server.until_free("job");
}

#[test]
fn whole_group_dies_with_run() {
    let server = Server::start();
    let mut run = Process::spawn(server.run("job", &["--ttl", "60s"], STUBBORN).stderr(Stdio::null()));
    let child = until_line(&server.path("child"));
    let grandchild = until_line(&server.path("grandchild"));
    // The sentinel is started after the command.
    let sentinel = until("the sentinel", || sentinel_of(&child));
    run.kill().unwrap();
    run.wait().unwrap();
    until("the command to die with it", || (!is_alive(&child)).then_some(()));
    until("its child to be killed", || (!is_alive(&grandchild)).then_some(()));
    until("the sentinel to end", || (!is_alive(&sentinel)).then_some(()));
}

#[test]
fn sentinel_ends_with_the_command() {
    let server = Server::start();
    let mut run = Process::spawn(&mut server.run(
        "job",
        &[],
        "echo $$ > child; while ! [ -e go ]; do sleep 0.01; done",
    ));
    let child = until_line(&server.path("child"));
    let sentinel = until("the sentinel", || sentinel_of(&child));
    std::fs::write(server.path("go"), "").unwrap();
    assert_eq!(run.code(), 0);
    until("the sentinel to end", || (!is_alive(&sentinel)).then_some(()));
}

/// The sentinel of the group of this command.
fn sentinel_of(child: &str) -> Option<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().into_string().ok());
    ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())).find(|id| {
        let words = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        words.split('\0').skip(1).take(2).eq(["__sentinel", child])
    })
}

#[test]
fn run_resumed_after_its_deadline_kills_at_once() {
    let server = Server::start();
    let mut run = Process::spawn(server.run("job", &["--ttl", "1s"], STUBBORN).stderr(Stdio::null()));
    let child = until_line(&server.path("child"));
    run.signal(Signal::STOP);
    server.until_free("job");
    let began = Instant::now();
    run.signal(Signal::CONT);
    assert_eq!(run.code(), 70);
    assert!(!is_alive(&child));
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "the command was not killed at once after the deadline: {:?}",
        began.elapsed()
    );
}
