//! This test program as a child process: a contender, a holder that can be stopped, or a node of a cell.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{TokenKind, Unfenced};
use rustix::process::{Pid, Signal, kill_process};

/// A child process that sends messages. Dropping it kills the process.
pub(crate) struct Child {
    pub(crate) process: std::process::Child,
    messages: mpsc::Receiver<String>,
}

impl Child {
    pub(crate) fn start(role: &str, settings: &[(&str, &str)]) -> Child {
        Child::start_test("child::child_process", role, settings)
    }

    /// Starts an ignored test as the child process.
    pub(crate) fn start_test(test: &str, role: &str, settings: &[(&str, &str)]) -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]);
        command.env("LOCKKEEPER_TEST_ROLE", role);
        for (name, value) in settings {
            command.env(format!("LOCKKEEPER_TEST_{name}"), value);
        }
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let messages = read_messages(process.stdout.take().unwrap());
        Child { process, messages }
    }

    /// Waits for the next message.
    pub(crate) fn next_message(&mut self) -> String {
        self.messages.recv_timeout(Duration::from_secs(90)).expect("the child process sends no message")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    pub(crate) fn wait_for_success(mut self) {
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads messages, which begin with @. All other output is from the test harness.
fn read_messages(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some((_, message)) = line.split_once('@')
                && sender.send(message.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// Sends a message to the parent process.
pub(crate) fn send_message(message: &str) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "@{message}").unwrap();
    stdout.flush().unwrap();
}

/// A setting from the parent process.
pub(crate) fn setting(name: &str) -> String {
    std::env::var(format!("LOCKKEEPER_TEST_{name}")).unwrap()
}

#[test]
#[ignore = "started by the other tests as a child process"]
fn child_process() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match std::env::var("LOCKKEEPER_TEST_ROLE").as_deref() {
        Ok("contender") => runtime.block_on(contend()),
        Ok("holder") => runtime.block_on(hold()),
        Ok("node") => runtime.block_on(serve()),
        // Not started by a test: all ignored tests are run by hand.
        _ => {}
    }
}

/// Connects a keeper; the second one has tokens, if the engine does.
pub(crate) async fn connect(url: &str) -> (Keeper<Unfenced>, Option<Keeper>) {
    let builder =
        Keeper::builder().accept_volatile_tokens().connect_timeout(30.secs()).request_timeout(30.secs());
    let keeper = builder.connect_unfenced(url).await.unwrap();
    let fenced = (keeper.capabilities().token != TokenKind::None).then(|| keeper.fenced().unwrap());
    (keeper, fenced)
}

/// Acquires the lock repeatedly, and fails if another process holds it at the same time.
async fn contend() {
    let folder = PathBuf::from(setting("FOLDER"));
    contend_for(&setting("URL"), &setting("LOCK"), &folder, setting("ROUNDS").parse().unwrap()).await;
}

pub(crate) async fn contend_for(url: &str, lock: &str, folder: &std::path::Path, rounds: usize) {
    let (keeper, fenced) = connect(url).await;
    for _ in 0..rounds {
        let (token, fenced_guard, guard) = match &fenced {
            Some(fenced) => {
                let guard = fenced.lock(lock).ttl(20.secs()).acquire().await.unwrap();
                (guard.token().0, Some(guard), None)
            }
            None => (0, None, Some(keeper.lock(lock).ttl(20.secs()).acquire().await.unwrap())),
        };
        let marker = folder.join("held");
        let created = std::fs::OpenOptions::new().write(true).create_new(true).open(&marker);
        assert!(created.is_ok(), "another contender holds the lock: {created:?}");
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(folder.join("log")).unwrap();
        std::io::Write::write_all(&mut log, format!("{token}\n").as_bytes()).unwrap();
        tokio::task::yield_now().await;
        std::fs::remove_file(&marker).unwrap();
        if let Some(guard) = fenced_guard {
            guard.release().await.unwrap();
        }
        if let Some(guard) = guard {
            guard.release().await.unwrap();
        }
    }
    keeper.close().await.unwrap();
}

/// Holds a lock until it is lost, and reports the token and the results of `check` and `release`.
async fn hold() {
    let (keeper, fenced) = connect(&setting("URL")).await;
    let ttl = Duration::from_millis(setting("TTL_MS").parse().unwrap());
    let lock = setting("LOCK");
    if let Some(fenced) = fenced {
        let guard = fenced.lock(lock).ttl(ttl).acquire().await.unwrap();
        send_message(&format!("holds {}", guard.token().0));
        guard.lost().await;
        send_message(if guard.check().is_err() { "check failed" } else { "check succeeded" });
        send_message(guard.release().await.unwrap_err().code());
    } else {
        let guard = keeper.lock(lock).ttl(ttl).acquire().await.unwrap();
        send_message("holds 0");
        guard.lost().await;
        send_message(if guard.check().is_err() { "check failed" } else { "check succeeded" });
        send_message(guard.release().await.unwrap_err().code());
    }
}

/// Serves a node of a cell until it is killed.
async fn serve() {
    let config = lockkeeper_server::NodeConfig::durable(PathBuf::from(setting("FOLDER")));
    let mut node = lockkeeper_server::Node::start(config).await.unwrap();
    node.listen(&setting("ADDRESS")).await.unwrap();
    send_message("listening");
    std::future::pending::<()>().await;
}
