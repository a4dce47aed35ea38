//! A server's process.

use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{ServerError, last_words};

/// Longer than any server takes on a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// How to start a process.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Environment variables in addition to ours.
    pub environment: Vec<(String, String)>,
    /// As which user, if not as ourselves.
    pub user: Option<&'static str>,
    /// Where its output goes; it is appended to.
    pub log: PathBuf,
}

impl Program {
    /// A program with its arguments.
    pub fn new<A: ToString>(path: impl Into<PathBuf>, arguments: &[A], log: impl Into<PathBuf>) -> Program {
        Program {
            path: path.into(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            environment: Vec::new(),
            user: None,
            log: log.into(),
        }
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// If `setpriv` is missing or the log cannot be written.
    pub fn start(&self) -> Result<Process, ServerError> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(ServerError::io(format!("the log {} cannot be written", self.log.display())))?;
        let again = log.try_clone().map_err(ServerError::io("the log cannot be shared"))?;
        let mut command = bound_to_us(self.user);
        command.arg(&self.path).args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(again)
            .spawn()
            .map_err(ServerError::io("setpriv (package util-linux) cannot be started"))?;
        Ok(Process { child, name: self.name(), log: self.log.clone() })
    }
}

/// A command that the kernel ends when the thread that started it ends, in whatever way.
pub fn bound_to_us(user: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    command
}

/// A process that ends with this value, and with the thread that started it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Waits until it listens.
    ///
    /// # Errors
    ///
    /// With its own words if it ended, or does not listen in time.
    pub fn until_it_listens(&mut self, address: SocketAddr) -> Result<(), ServerError> {
        self.until(&format!("{} at {address}", self.name), || TcpStream::connect(address).is_ok())
    }

    /// Waits until something is so.
    ///
    /// # Errors
    ///
    /// With its own words if it ended, or it is not so in time.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), ServerError> {
        let until = Instant::now() + LONG;
        while !is_so() {
            let ended = self.child.try_wait().map_err(ServerError::io("a process cannot be waited for"))?;
            if let Some(status) = ended {
                let words = last_words(&self.log);
                return Err(ServerError::Ended {
                    program: self.name.clone(),
                    status: status.to_string(),
                    words,
                });
            }
            if Instant::now() > until {
                let words = last_words(&self.log);
                return Err(ServerError::Late { what: what.to_owned(), seconds: LONG.as_secs(), words });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Sends it a signal. One that has ended gets none.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, for a while.
    pub fn until_it_ended(mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a program is: Debian has some outside the usual path.
///
/// # Errors
///
/// If it is not there; with the words that say how to get it.
pub fn find_program(
    program: &'static str,
    elsewhere: &[&str],
    advice: &'static str,
) -> Result<PathBuf, ServerError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(elsewhere.iter().map(PathBuf::from));
    places
        .iter()
        .map(|place| place.join(program))
        .find(|path| path.exists())
        .ok_or(ServerError::Missing { program, advice })
}

/// What a program says about itself, first line.
pub(crate) fn first_line(path: &std::path::Path, arguments: &[&str]) -> String {
    let output = Command::new(path).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Runs a command that has to succeed.
pub(crate) fn succeed(mut command: Command) -> Result<String, ServerError> {
    let name = format!("{:?}", command.get_program());
    let output = command.output().map_err(ServerError::io(format!("{name} cannot be started")))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ServerError::Command { command: name, words });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A temporary folder.
pub(crate) fn folder() -> Result<tempfile::TempDir, ServerError> {
    let folder = tempfile::Builder::new().prefix("lockkeeper-").tempdir();
    folder.map_err(ServerError::io("no temporary folder can be made"))
}
