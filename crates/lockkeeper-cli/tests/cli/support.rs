//! Servers and commands for the tests. They end with the test.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// Longer than any operation takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The binary with default signal dispositions, regardless of the test runner's.
pub(crate) fn lockkeeper() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(BINARY).env_remove("LOCKKEEPER_ENGINE").stdin(Stdio::null());
    command
}

/// Polls until `look` returns a value.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(thing) = look() {
            return thing;
        }
        assert!(began.elapsed() < LONG, "timed out after {LONG:?} waiting for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The text of a file, once it has a whole line.
pub(crate) fn until_line(path: &Path) -> String {
    until(&format!("a line in {}", path.display()), || {
        std::fs::read_to_string(path)
            .ok()
            .filter(|text| text.ends_with('\n'))
            .map(|text| text.trim().to_owned())
    })
}

/// A child that does not outlive the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Process {
        Process(command.spawn().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for the exit status.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until("the end of a process", || self.0.try_wait().unwrap())
    }

    pub(crate) fn code(&mut self) -> i32 {
        self.ended().code().expect("an exit code, not a signal")
    }

    pub(crate) fn stderr_text(&mut self) -> String {
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    pub(crate) fn stdout_text(&mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    pub(crate) fn write(&mut self, text: &str) {
        let stdin = self.0.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Process {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

/// A node with its own folder and port.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: String,
    folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(&[])
    }

    /// Starts with additional arguments.
    pub(crate) fn start_with(words: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let (process, address) = serve(&folder.path().join("data"), "127.0.0.1:0", words);
        Server { process, address, folder }
    }

    /// Starts with a data folder below `place`.
    pub(crate) fn start_in(place: &Path) -> Server {
        let folder = tempfile::tempdir_in(place).unwrap();
        let (process, address) = serve(&folder.path().join("data"), "127.0.0.1:0", &[]);
        Server { process, address, folder }
    }

    /// A folder for the files of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// The process id: `env` has become the node by exec.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Restarts the node with the same folder and address.
    pub(crate) fn restart(&mut self) {
        self.process = serve(&self.data_dir(), &self.address, &[]).0;
    }

    pub(crate) fn engine(&self) -> String {
        format!("lockkeeper://{}", self.address)
    }

    /// The binary with arguments and this server as engine.
    pub(crate) fn cli(&self, words: &[&str]) -> Command {
        let mut command = lockkeeper();
        command.args(words).env("LOCKKEEPER_ENGINE", self.engine()).current_dir(self.folder.path());
        command
    }

    pub(crate) fn output(&self, words: &[&str]) -> Output {
        self.cli(words).output().unwrap()
    }

    /// `lockkeeper run NAME OPTIONS -- sh -c SCRIPT`, in the folder of the test.
    pub(crate) fn run(&self, name: &str, options: &[&str], script: &str) -> Command {
        let mut command = self.cli(&["run", name]);
        command.args(options).args(["--", "sh", "-c", script]);
        command
    }

    /// Holds a lock until the process is dropped.
    pub(crate) fn hold(&self, name: &str) -> Process {
        let holder = Process::spawn(self.run(name, &[], "exec sleep 1000").stdout(Stdio::null()));
        until("the lock to be held", || {
            (!self.who(name)["holders"].as_array().unwrap().is_empty()).then_some(())
        });
        holder
    }

    pub(crate) fn json(&self, words: &[&str]) -> serde_json::Value {
        let mut words = words.to_vec();
        words.extend(["--output", "json"]);
        let output = self.output(&words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn who(&self, name: &str) -> serde_json::Value {
        self.json(&["who", name])
    }

    pub(crate) fn until_waiting(&self, name: &str, count: u64) {
        until(&format!("{count} to wait for {name}"), || (self.who(name)["waiting"] == count).then_some(()));
    }

    pub(crate) fn until_free(&self, name: &str) {
        until(&format!("{name} to be free"), || {
            self.who(name)["holders"].as_array().unwrap().is_empty().then_some(())
        });
    }
}

fn serve(data_dir: &Path, listen: &str, words: &[&str]) -> (Process, String) {
    let log = data_dir.with_extension("stderr");
    let mut process = Process::spawn(
        lockkeeper()
            .args(["serve", "--listen", listen, "--data-dir"])
            .arg(data_dir)
            .args(words)
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap()),
    );
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("lockkeeper serves on ").and_then(|rest| rest.split(' ').next());
    let address = address.unwrap_or_else(|| panic!("{line:?}: {}", std::fs::read_to_string(&log).unwrap()));
    (process, address.to_owned())
}

/// An engine URL with a port where no process listens.
pub(crate) fn dead_engine() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("lockkeeper://{}", listener.local_addr().unwrap())
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with(['Z', 'X']))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
