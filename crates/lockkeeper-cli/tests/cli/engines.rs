//! `run` and `doctor` on third-party engines, with real servers.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::{Process, lockkeeper, until};

struct Redis {
    _folder: TempDir,
    address: SocketAddr,
    _process: Process,
}

impl Redis {
    fn start(settings: &[&str]) -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "redis-server", "--port", &address.port().to_string()]);
        command.args(["--bind", "127.0.0.1", "--save", ""]).args(settings).arg("--dir").arg(folder.path());
        let process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        until("redis-server to listen", || TcpStream::connect(address).ok());
        Redis { _folder: folder, address, _process: process }
    }
}

const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

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
    let redis = Redis::start(DURABLE);
    let url = format!("redis://{}", redis.address);
    assert_eq!(run_and_print_environment(&url, &[]), "nightly/none/none");
    let fenced = run_and_print_environment(&url, &["--accept-volatile-tokens"]);
    assert!(fenced.starts_with("nightly/1") && fenced.ends_with(":x:nightly"), "{fenced}");
}

#[test]
fn run_on_redlock_is_exclusive_and_returns_the_commands_exit_code() {
    let instances: Vec<Redis> = (0..3).map(|_| Redis::start(DURABLE)).collect();
    let hosts: Vec<String> = instances.iter().map(|redis| redis.address.to_string()).collect();
    let url = format!("redlock://{}?timeout_ms=300", hosts.join(","));
    assert_eq!(run_and_print_environment(&url, &[]), "nightly/none/none");
    let inner = format!("{} run nightly --no-wait --engine '{url}' -- true; exit $?", crate::support::BINARY);
    let output = output(&["run", "nightly", "--engine", &url, "--", "sh", "-c", &inner]);
    assert_eq!(output.status.code(), Some(75), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn doctor_exits_with_0_or_with_1_and_findings() {
    let (safe, volatile) = (Redis::start(DURABLE), Redis::start(&["--appendonly", "no"]));
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
    let redis = Redis::start(&[DURABLE, &["--requirepass", "s3cret"]].concat());
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
