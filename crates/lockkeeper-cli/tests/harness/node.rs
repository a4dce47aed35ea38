//! One process of a cell.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{BINARY, http, until};

/// What nodes write to their logs, unless LOCKKEEPER_NODE_LOG says more.
const LOGGED: &str = "info,openraft=error";

/// Names another binary, such as an optimised one.
const OTHER_BINARY: &str = "LOCKKEEPER_NODE_BINARY";

/// A node, whether it runs or not.
pub struct Node {
    pub id: u64,
    /// Where it listens.
    pub listens: String,
    /// Where others find it: the same, or a proxy.
    pub address: String,
    pub data: PathBuf,
    pub log: PathBuf,
    /// What it finds in its environment besides.
    pub environment: Vec<(String, PathBuf)>,
    process: Option<Child>,
}

/// An address for one node: a host of its own on the loopback, so that no outgoing connection of anybody can take
/// its port while it is down.
pub fn free_address(port: u16) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id() % 62_000;
    let octets = [127, 1 + (process / 250) as u8, (process % 250) as u8, 1 + (count % 250) as u8];
    SocketAddrV4::new(Ipv4Addr::from(octets), port + (count / 250) as u16 * 10).to_string()
}

/// Whether the nodes are of another build than the tests.
pub fn has_other_binary() -> bool {
    std::env::var_os(OTHER_BINARY).is_some()
}

/// The binary. It dies with the test, also if the test is killed.
pub fn lockkeeper() -> Command {
    let mut command = Command::new("setpriv");
    let other = std::env::var_os(OTHER_BINARY);
    command.args(["--pdeathsig", "KILL"]).arg(other.unwrap_or(BINARY.into())).stdin(Stdio::null());
    for name in ["LOCKKEEPER_ENGINE", "LOCKKEEPER_LOG", "LOCKKEEPER_CELL", "LOCKKEEPER_NODE_ID"] {
        command.env_remove(name);
    }
    command
}

impl Node {
    pub fn new(id: u64, listens: String, address: String, folder: &Path) -> Node {
        let data = folder.join(format!("node-{id}"));
        let log = folder.join(format!("node-{id}.log"));
        Node { id, listens, address, data, log, environment: Vec::new(), process: None }
    }

    /// `lockkeeper serve` for this node, with what is given in addition.
    pub fn serve(&self, words: &[&str]) -> Command {
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("a log");
        let mut command = lockkeeper();
        command
            .args(["serve", "--node-id", &self.id.to_string(), "--listen", &self.listens, "--data-dir"])
            .arg(&self.data)
            .args(words)
            .env("LOCKKEEPER_LOG", std::env::var("LOCKKEEPER_NODE_LOG").as_deref().unwrap_or(LOGGED))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    /// Starts it and returns its process id.
    pub fn spawn(&mut self, words: &[&str]) -> u32 {
        assert!(self.process.is_none(), "node {} runs", self.id);
        let process = self.serve(words).spawn().expect("setpriv (util-linux) starts the binary");
        self.process.insert(process).id()
    }

    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    pub fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        kill_process(Pid::from_raw(process.id() as i32).expect("an id"), signal).expect("it is ours");
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Its end, which somebody or something else has brought about.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("it runs");
        let what = format!("the end of node {}", self.id);
        until(&what, async || process.try_wait().expect("it is our child")).await
    }

    /// Whether it has ended on its own.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().is_ok_and(|ended| ended.is_some()))
    }

    /// TERM, and what it then ends with.
    pub async fn term(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    pub async fn status(&self) -> Option<Value> {
        let answer = http::quick_get(&self.listens, "/v1/status").await?;
        (answer.status == 200).then_some(answer.body)
    }

    /// The same from a node that is known to answer, though it may be late on a busy machine.
    pub async fn until_status(&self) -> Value {
        until(&format!("the status of node {}", self.id), async || self.status().await).await
    }

    /// Whether it leads, and can prove it.
    pub async fn leads(&self) -> Option<u64> {
        let ready = http::quick_get(&self.listens, "/readyz?verbose").await?;
        if ready.body["checks"]["role"] != "leader" {
            return None;
        }
        let read = http::quick_get(&self.listens, "/v1/lock?name=is-there-a-leader").await?;
        (read.status == 200).then(|| ready.body["checks"]["term"].as_u64()).flatten()
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for words in what it has written to stderr.
    pub async fn until_log(&self, words: &str) {
        let what = format!("node {} to say \"{words}\"", self.id);
        until(&what, async || self.log_text().contains(words).then_some(())).await;
    }

    pub fn empty_log(&self) {
        File::create(&self.log).expect("a log");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let text = self.log_text();
            let lines: Vec<_> = text.lines().collect();
            eprintln!("--- stderr of node {} at {}", self.id, self.listens);
            for line in &lines[lines.len().saturating_sub(60)..] {
                eprintln!("{line}");
            }
            return;
        }
        // A task that panics takes its connection along and nothing else: no test would notice.
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let panicked = log.lines().skip_while(|line| !line.contains("panicked at")).take(2);
        let panicked: Vec<_> = panicked.collect();
        assert!(panicked.is_empty(), "node {} at {}: {panicked:?}", self.id, self.listens);
    }
}
