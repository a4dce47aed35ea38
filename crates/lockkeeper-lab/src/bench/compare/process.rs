//! A server that the comparison has started, gone when it is dropped.

use std::ffi::OsString;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::super::contender::BenchError;

/// How to start a server, and the process.
pub(super) struct Process {
    program: PathBuf,
    arguments: Vec<OsString>,
    user: Option<&'static str>,
    log: PathBuf,
    /// What ends it and all that it has started.
    ends_by: Signal,
    child: Child,
}

fn failed(program: &Path, error: &std::io::Error) -> BenchError {
    BenchError::Server(format!("{} cannot be started: {error}", program.display()))
}

impl Process {
    pub(super) fn start(
        program: &Path,
        arguments: Vec<OsString>,
        log: PathBuf,
    ) -> Result<Process, BenchError> {
        let child = spawn(program, &arguments, None, &log)?;
        Ok(Process { program: program.to_owned(), arguments, user: None, log, ends_by: Signal::KILL, child })
    }

    /// As another user, if one is named; its children are to end before it does.
    pub(super) fn start_family(
        user: Option<&'static str>,
        program: &Path,
        arguments: Vec<OsString>,
        log: PathBuf,
    ) -> Result<Process, BenchError> {
        let child = spawn(program, &arguments, user, &log)?;
        Ok(Process { program: program.to_owned(), arguments, user, log, ends_by: Signal::QUIT, child })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written, for when it does not come up.
    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Its end, at once.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), self.ends_by);
        let _ = self.child.wait();
    }

    pub(super) fn start_again(&mut self) -> Result<(), BenchError> {
        self.kill();
        self.child = spawn(&self.program, &self.arguments, self.user, &self.log)?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(
    program: &Path,
    arguments: &[OsString],
    user: Option<&str>,
    log: &Path,
) -> Result<Child, BenchError> {
    let out = File::options().create(true).append(true).open(log).map_err(|error| failed(log, &error))?;
    let errors = out.try_clone().map_err(|error| failed(log, &error))?;
    command_as(user, program)
        .args(arguments)
        .env("LOCKKEEPER_LOG", "error")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .spawn()
        .map_err(|error| failed(program, &error))
}

/// The kernel ends it when we end in any way.
pub(super) fn command_as(user: Option<&str>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    command.arg(program);
    command
}

/// Ports that nobody listens at now, no two the same.
pub(super) fn free_ports(count: usize) -> Result<Vec<u16>, BenchError> {
    let listeners: Result<Vec<_>, _> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let ports = listeners.and_then(|all| all.iter().map(|one| Ok(one.local_addr()?.port())).collect());
    ports.map_err(|error: std::io::Error| BenchError::Server(format!("there is no free port: {error}")))
}

/// Where a program is, on the path or in one of these places; else which package brings it.
pub(super) fn find(name: &str, elsewhere: &[PathBuf], package: &str) -> Result<PathBuf, BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(elsewhere.iter().cloned())
        .map(|place| place.join(name))
        .find(|program| program.exists())
        .ok_or_else(|| BenchError::Server(format!("{name} is not installed: {package}")))
}
