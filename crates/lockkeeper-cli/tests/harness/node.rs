//! A node process of a cell.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{BINARY, http, until};

/// The log filter of nodes, unless LOCKKEEPER_NODE_LOG overrides it.
const LOGGED: &str = "info,openraft=error";

/// Variable that names another binary, such as an optimised one.
const OTHER_BINARY: &str = "LOCKKEEPER_NODE_BINARY";

/// A node, running or not.
pub struct Node {
    pub id: u64,
    /// Address where the node listens.
    pub listen_addr: String,
    /// Address that others use: the same, or that of a proxy.
    pub address: String,
    pub data: PathBuf,
    pub log: PathBuf,
    /// Additional environment variables.
    pub environment: Vec<(String, PathBuf)>,
    /// Another binary than the other nodes have.
    pub binary: Option<PathBuf>,
    /// A process whose network namespace the node runs in.
    pub namespace_of: Option<u32>,
    process: Option<Child>,
}

/// An address for one node, which nothing else can take while the node is down.
pub fn free_address(port: u16) -> String {
    lockkeeper_testkit::free_address(port).to_string()
}

/// Whether the nodes use another build than the tests.
pub fn has_other_binary() -> bool {
    std::env::var_os(OTHER_BINARY).is_some()
}

/// The binary. It ends with the test, even if the test is killed.
pub fn lockkeeper() -> Command {
    program(None, None)
}

/// The same with another binary or in the network namespace of another process.
fn program(binary: Option<&Path>, namespace_of: Option<u32>) -> Command {
    let mut command = match namespace_of {
        Some(process) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{process}/ns/net")).arg("setpriv");
            command
        }
        None => Command::new("setpriv"),
    };
    let other = std::env::var_os(OTHER_BINARY).map(PathBuf::from);
    let binary = binary.map(Path::to_owned).or(other).unwrap_or(BINARY.into());
    command.args(["--pdeathsig", "KILL"]).arg(binary).stdin(Stdio::null());
    for name in ["LOCKKEEPER_ENGINE", "LOCKKEEPER_LOG", "LOCKKEEPER_CELL", "LOCKKEEPER_NODE_ID"] {
        command.env_remove(name);
    }
    command
}

impl Node {
    pub fn new(id: u64, listen_addr: String, address: String, folder: &Path) -> Node {
        let data = folder.join(format!("node-{id}"));
        let log = folder.join(format!("node-{id}.log"));
        Node {
            id,
            listen_addr,
            address,
            data,
            log,
            environment: Vec::new(),
            binary: None,
            namespace_of: None,
            process: None,
        }
    }

    /// `lockkeeper serve` for this node, with additional arguments.
    pub fn serve(&self, words: &[&str]) -> Command {
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("a log");
        let mut command = program(self.binary.as_deref(), self.namespace_of);
        command
            .args(["serve", "--node-id", &self.id.to_string(), "--listen", &self.listen_addr, "--data-dir"])
            .arg(&self.data)
            .args(words)
            .env("LOCKKEEPER_LOG", std::env::var("LOCKKEEPER_NODE_LOG").as_deref().unwrap_or(LOGGED))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    /// Starts the node and returns its process id.
    pub fn spawn(&mut self, words: &[&str]) -> u32 {
        assert!(self.process.is_none(), "node {} is already running", self.id);
        let process = self.serve(words).spawn().expect("setpriv (util-linux) starts the binary");
        self.process.insert(process).id()
    }

    pub fn is_running(&self) -> bool {
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

    /// Waits for the node to end by itself or by a signal.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("it runs");
        let what = format!("the end of node {}", self.id);
        until(&what, async || process.try_wait().expect("it is our child")).await
    }

    /// Whether the node has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().is_ok_and(|ended| ended.is_some()))
    }

    /// Sends TERM and returns the exit status.
    pub async fn term(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    pub async fn status(&self) -> Option<Value> {
        let answer = http::quick_get(&self.listen_addr, "/v1/status").await?;
        (answer.status == 200).then_some(answer.body)
    }

    /// The same with retries, because a busy node may answer late.
    pub async fn until_status(&self) -> Value {
        until(&format!("the status of node {}", self.id), async || self.status().await).await
    }

    /// The term of a leader with a quorum.
    pub async fn leading_term(&self) -> Option<u64> {
        let ready = http::quick_get(&self.listen_addr, "/readyz?verbose").await?;
        if ready.body["checks"]["role"] != "leader" {
            return None;
        }
        let read = http::quick_get(&self.listen_addr, "/v1/lock?name=is-there-a-leader").await?;
        (read.status == 200).then(|| ready.body["checks"]["term"].as_u64()).flatten()
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log contains a text.
    pub async fn until_log(&self, words: &str) {
        let what = format!("node {} to log \"{words}\"", self.id);
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
            eprintln!("--- stderr of node {} at {}", self.id, self.listen_addr);
            for line in &lines[lines.len().saturating_sub(60)..] {
                eprintln!("{line}");
            }
            return;
        }
        // A panic in a task only closes its connection, so no test would notice.
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let panicked = log.lines().skip_while(|line| !line.contains("panicked at")).take(2);
        let panicked: Vec<_> = panicked.collect();
        assert!(panicked.is_empty(), "node {} at {}: {panicked:?}", self.id, self.listen_addr);
    }
}
