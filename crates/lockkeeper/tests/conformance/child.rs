//! This test program as a process of its own: a contender, a holder that can be stopped, a node of a cell.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use lockkeeper::prelude::*;
use lockkeeper::{TokenKind, Unfenced};
use rustix::process::{Pid, Signal, kill_process};

/// A process that says something now and then. It ends with this value.
pub(crate) struct Child {
    pub(crate) process: std::process::Child,
    words: mpsc::Receiver<String>,
}

impl Child {
    pub(crate) fn start(role: &str, settings: &[(&str, &str)]) -> Child {
        Child::playing("child::plays_its_role", role, settings)
    }

    /// The same with a test of another name that knows the role.
    pub(crate) fn playing(test: &str, role: &str, settings: &[(&str, &str)]) -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]);
        command.env("LOCKKEEPER_TEST_ROLE", role);
        for (name, value) in settings {
            command.env(format!("LOCKKEEPER_TEST_{name}"), value);
        }
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let words = listen(process.stdout.take().unwrap());
        Child { process, words }
    }

    /// The next thing it says.
    pub(crate) fn says(&mut self) -> String {
        self.words.recv_timeout(Duration::from_secs(90)).expect("it says nothing")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    pub(crate) fn ends_well(mut self) {
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

/// What it says begins with @; the rest is the test harness.
fn listen(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some((_, word)) = line.split_once('@')
                && sender.send(word.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

pub(crate) fn say(word: &str) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "@{word}").unwrap();
    stdout.flush().unwrap();
}

pub(crate) fn setting(name: &str) -> String {
    std::env::var(format!("LOCKKEEPER_TEST_{name}")).unwrap()
}

#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn plays_its_role() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match std::env::var("LOCKKEEPER_TEST_ROLE").as_deref() {
        Ok("contender") => runtime.block_on(contend()),
        Ok("holder") => runtime.block_on(hold()),
        Ok("node") => runtime.block_on(serve()),
        // Somebody runs all ignored tests by hand: there is nothing to do.
        _ => {}
    }
}

/// A keeper, and the same with tokens if its engine has any.
pub(crate) async fn connect(url: &str) -> (Keeper<Unfenced>, Option<Keeper>) {
    let builder =
        Keeper::builder().accept_volatile_tokens().connect_timeout(30.secs()).request_timeout(30.secs());
    let keeper = builder.connect_unfenced(url).await.unwrap();
    let fenced = (keeper.capabilities().token != TokenKind::None).then(|| keeper.fenced().unwrap());
    (keeper, fenced)
}

/// Takes the lock again and again; whoever is not alone inside says so by failing.
async fn contend() {
    let folder = PathBuf::from(setting("FOLDER"));
    contend_for(&setting("URL"), &setting("LOCK"), &folder, setting("ROUNDS").parse().unwrap()).await;
}

pub(crate) async fn contend_for(url: &str, lock: &str, folder: &std::path::Path, rounds: usize) {
    let (keeper, fenced) = connect(url).await;
    for _ in 0..rounds {
        let (token, guard, other) = match &fenced {
            Some(fenced) => {
                let guard = fenced.lock(lock).ttl(20.secs()).acquire().await.unwrap();
                (guard.token().0, Some(guard), None)
            }
            None => (0, None, Some(keeper.lock(lock).ttl(20.secs()).acquire().await.unwrap())),
        };
        let inside = folder.join("inside");
        let alone = std::fs::OpenOptions::new().write(true).create_new(true).open(&inside);
        assert!(alone.is_ok(), "somebody else is inside");
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(folder.join("log")).unwrap();
        std::io::Write::write_all(&mut log, format!("{token}\n").as_bytes()).unwrap();
        tokio::task::yield_now().await;
        std::fs::remove_file(&inside).unwrap();
        if let Some(guard) = guard {
            guard.release().await.unwrap();
        }
        if let Some(guard) = other {
            guard.release().await.unwrap();
        }
    }
    keeper.close().await.unwrap();
}

/// Holds a lock until it is lost, and says what it sees.
async fn hold() {
    let (keeper, fenced) = connect(&setting("URL")).await;
    let ttl = Duration::from_millis(setting("TTL_MS").parse().unwrap());
    let lock = setting("LOCK");
    if let Some(fenced) = fenced {
        let guard = fenced.lock(lock).ttl(ttl).acquire().await.unwrap();
        say(&format!("holds {}", guard.token().0));
        guard.lost().await;
        say(if guard.check().is_err() { "knows" } else { "does not know" });
        say(guard.release().await.unwrap_err().code());
    } else {
        let guard = keeper.lock(lock).ttl(ttl).acquire().await.unwrap();
        say("holds 0");
        guard.lost().await;
        say(if guard.check().is_err() { "knows" } else { "does not know" });
        say(guard.release().await.unwrap_err().code());
    }
}

/// A node of a cell, until it is killed.
async fn serve() {
    let config = lockkeeper_server::NodeConfig::durable(PathBuf::from(setting("FOLDER")));
    let mut node = lockkeeper_server::Node::start(config).await.unwrap();
    node.listen(&setting("ADDRESS")).await.unwrap();
    say("listening");
    std::future::pending::<()>().await;
}
