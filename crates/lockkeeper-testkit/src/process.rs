//! Child processes.

use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{ServerError, log_tail};

/// Time limit for a server to become ready on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// A program with its arguments and environment.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Environment variables in addition to our own.
    pub environment: Vec<(String, String)>,
    /// The user to run as, if not our own.
    pub user: Option<&'static str>,
    /// The file that its output is appended to.
    pub log: PathBuf,
}

impl Program {
    /// A program with arguments.
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
            .map_err(ServerError::io(format!("failed to open the log {}", self.log.display())))?;
        let again = log.try_clone().map_err(ServerError::io("failed to duplicate the log"))?;
        let mut command = child_command(self.user);
        command.arg(&self.path).args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(again)
            .spawn()
            .map_err(ServerError::io("failed to start setpriv (package util-linux)"))?;
        Ok(Process { child, name: self.name(), log: self.log.clone() })
    }
}

/// A command whose process the kernel kills when the thread that started it ends in any way.
pub fn child_command(user: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    command
}

/// A child process. It is killed when this value is dropped, or when the thread that started it ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// If it exits, or does not listen in time; with the end of its log.
    pub fn wait_until_listening(&mut self, address: SocketAddr) -> Result<(), ServerError> {
        self.wait_until(&format!("{} at {address}", self.name), || TcpStream::connect(address).is_ok())
    }

    /// Waits until a condition is true.
    ///
    /// # Errors
    ///
    /// If it exits, or the condition is not true in time; with the end of its log.
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) -> Result<(), ServerError> {
        let deadline = Instant::now() + READY_WITHIN;
        while !condition() {
            let ended = self.child.try_wait().map_err(ServerError::io("failed to wait for a process"))?;
            if let Some(status) = ended {
                let words = log_tail(&self.log);
                return Err(ServerError::Ended {
                    program: self.name.clone(),
                    status: status.to_string(),
                    words,
                });
            }
            if Instant::now() > deadline {
                let words = log_tail(&self.log);
                return Err(ServerError::Late {
                    what: what.to_owned(),
                    seconds: READY_WITHIN.as_secs(),
                    words,
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it exits, for at most ten seconds.
    pub fn wait_for_exit(mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
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

/// Finds a program on the PATH, or in other folders: Debian keeps some outside the PATH.
///
/// # Errors
///
/// If it is not installed.
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

/// The first line that a program prints.
pub(crate) fn first_line(path: &Path, arguments: &[&str]) -> String {
    let output = Command::new(path).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Runs a command and returns its output.
pub(crate) fn run_checked(mut command: Command) -> Result<String, ServerError> {
    let name = format!("{:?}", command.get_program());
    let output = command.output().map_err(ServerError::io(format!("failed to start {name}")))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ServerError::Command { command: name, words });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Folder for the data of servers, if it is not the temporary folder of the system.
static DATA_FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder below which servers that are started from now on keep their data, such as one on the disk to measure.
/// Only the first call has an effect.
pub fn set_data_folder(folder: &Path) {
    let _ = DATA_FOLDER.set(folder.to_owned());
}

/// Creates a temporary folder.
pub(crate) fn folder() -> Result<tempfile::TempDir, ServerError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("lockkeeper-");
    let folder = match DATA_FOLDER.get() {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    };
    folder.map_err(ServerError::io("failed to create a temporary folder"))
}
