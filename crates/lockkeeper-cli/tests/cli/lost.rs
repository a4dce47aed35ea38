//! A lease that ends: the command ends first.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::{Process, Server, is_alive, until, until_line};

const TTL: Duration = Duration::from_secs(2);

/// A command and its child that ignore TERM and write down, again and again, that they are alive.
const STUBBORN: &str = "trap 'date +%s%N >> term' TERM; \
    sh -c 'trap \"\" TERM; echo $$ > grandchild; while :; do date +%s%N >> alive-2; sleep 0.01; done' & \
    echo $$ > child; while :; do date +%s%N >> alive-1; sleep 0.01; done";

fn nanos_now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// The moments that were written down. The last one may have been cut short by KILL.
fn stamps(server: &Server, file: &str) -> Vec<u128> {
    let text = std::fs::read_to_string(server.path(file)).unwrap();
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| line.trim().parse().unwrap())
        .collect()
}

/// The shells of the test may have complained before us.
fn last_line(text: &str) -> &str {
    text.lines().last().unwrap()
}

/// Takes the server away, and sees the group end before the lease can.
fn is_ended_before_the_deadline(take_away: impl FnOnce(&mut Server)) {
    let mut server = Server::start();
    let mut run = Process::spawn(server.run("job", &["--ttl", "2s"], STUBBORN).stderr(Stdio::piped()));
    let child = until_line(&server.path("child"));
    let grandchild = until_line(&server.path("grandchild"));
    until("signs of life", || server.path("alive-2").exists().then_some(()));
    take_away(&mut server);
    let gone_at = nanos_now();
    assert_eq!(run.code(), 70, "lost");
    assert!(!is_alive(&child) && !is_alive(&grandchild));
    // No renewal was sent after the server was gone, so the lease ends at the latest a TTL later.
    let lease_end = gone_at + TTL.as_nanos();
    assert!(nanos_now() < lease_end + 1_000_000_000, "run ends soon after");
    for file in ["alive-1", "alive-2"] {
        let last = *stamps(&server, file).last().unwrap();
        assert!(last < lease_end, "{file} was at work after the lease");
        assert!(last > gone_at + TTL.as_nanos() / 4, "{file} was ended long before it had to be");
    }
    let term = stamps(&server, "term")[0];
    assert!(term > gone_at, "TERM came first");
    assert!(term < lease_end - 200_000_000, "and left time to end: {} ms", (lease_end - term) / 1_000_000);
    let stderr = run.stderr_text();
    assert!(
        stderr.contains("\"job\" was lost: it could not be renewed in time; the command was ended"),
        "{stderr}"
    );
}

#[test]
fn the_server_is_killed() {
    is_ended_before_the_deadline(Server::kill);
}

#[test]
fn the_server_hangs() {
    is_ended_before_the_deadline(|server| server.signal(Signal::STOP));
}

#[test]
fn a_command_that_ends_well_at_term_is_lost_all_the_same() {
    let mut server = Server::start();
    let script = "trap 'exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    let mut run = Process::spawn(server.run("job", &["--ttl", "1s"], script).stderr(Stdio::null()));
    until("the command", || server.path("ready").exists().then_some(()));
    server.kill();
    assert_eq!(run.code(), 70);
}

#[test]
fn a_short_outage_costs_nothing() {
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
fn taken_away_by_force() {
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
    assert!(took >= Duration::from_millis(400), "TERM had its time: {took:?}");
    assert!(took < Duration::from_secs(10), "it does not wait for the TTL: {took:?}");
    assert!(server.path("term").exists());
    assert!(!is_alive(&child) && !is_alive(&grandchild));
    let error: serde_json::Value = serde_json::from_str(last_line(&run.stderr_text())).unwrap();
    assert_eq!(error["error"]["code"], "lost");
    assert!(error["error"]["message"].as_str().unwrap().contains("taken away by force"), "{error}");
}

#[test]
fn run_is_killed() {
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
fn run_is_killed_and_what_its_command_has_started_goes_too() {
    let server = Server::start();
    let mut run = Process::spawn(server.run("job", &["--ttl", "60s"], STUBBORN).stderr(Stdio::null()));
    let child = until_line(&server.path("child"));
    let grandchild = until_line(&server.path("grandchild"));
    // The sentinel is started after the command: it is there when it shows.
    let sentinel = until("the sentinel", || sentinel_of(&child));
    run.kill().unwrap();
    run.wait().unwrap();
    until("the command to die with it", || (!is_alive(&child)).then_some(()));
    until("its child to be killed", || (!is_alive(&grandchild)).then_some(()));
    until("the sentinel to end", || (!is_alive(&sentinel)).then_some(()));
}

#[test]
fn nobody_is_left_behind_when_all_goes_well() {
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

/// The process that watches over the group of this command.
fn sentinel_of(child: &str) -> Option<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().into_string().ok());
    ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())).find(|id| {
        let words = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        words.split('\0').skip(1).take(2).eq(["__sentinel", child])
    })
}

#[test]
fn run_sleeps_through_its_deadline() {
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
        "no time is given after the deadline: {:?}",
        began.elapsed()
    );
}
