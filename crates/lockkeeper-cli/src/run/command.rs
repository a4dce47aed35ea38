//! The command as a process group: starts, signals and reaps it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, test_kill_process_group, wait,
};

use super::terminal;
use crate::child::{self, ChildSettings};
use crate::failure::Failure;

/// The running binary, even if its file was replaced since the start.
pub(super) const OWN_BINARY: &str = "/proc/self/exe";

/// A running command, the leader of its own process group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunningCommand {
    /// The command, and its process group.
    pub(crate) pid: Pid,
}

impl RunningCommand {
    pub(crate) fn start(
        words: &[OsString],
        environment: Vec<(&str, String)>,
        json: bool,
    ) -> Result<RunningCommand, Failure> {
        let foreground = terminal::belongs_to_command();
        let mut command = if Path::new(OWN_BINARY).exists() {
            let mut command = Command::new(OWN_BINARY);
            command.args(ChildSettings { parent: getpid(), foreground, json }.to_arguments()).args(words);
            command
        } else {
            // Without /proc (not Linux), the command outlives `run` if `run` is killed.
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        };
        let child = command
            .envs(environment)
            .process_group(0)
            .spawn()
            .map_err(|error| child::cannot_start(&words[0], &error))?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Failure::other("the system returned an invalid process id"))?;
        if foreground {
            terminal::set_foreground(pid);
        }
        Ok(RunningCommand { pid })
    }

    /// Signals the whole group. An empty group is not an error.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }

    /// Sends TERM, and CONT for stopped processes.
    pub(crate) fn terminate(self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Whether a process of the group is alive. Zombies do not count: in a container without an init they stay forever.
    pub(crate) fn is_alive(self) -> bool {
        match test_kill_process_group(self.pid) {
            Err(rustix::io::Errno::SRCH) => false,
            _ => has_live_member(self.pid.as_raw_nonzero().get()).unwrap_or(true),
        }
    }
}

fn has_live_member(group: i32) -> io::Result<bool> {
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // A process that has ended meanwhile cannot be read.
        let Ok(stat) = fs::read(entry.path().join("stat")) else { continue };
        if let Some((state, its_group)) = state_and_group(&String::from_utf8_lossy(&stat))
            && its_group == group
            && !matches!(state, 'Z' | 'X' | 'x')
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Parses `4711 (name) S parent group ...`; the name may contain spaces and brackets.
fn state_and_group(stat: &str) -> Option<(char, i32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((state, group))
}

/// Reaps all children that have ended or stopped, also those that process 1 inherited.
pub(crate) fn reap(mut each: impl FnMut(Pid, WaitStatus)) {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        each(pid, status);
    }
}

/// The exit code of a process that has ended; `None` if it has only stopped.
pub(crate) fn exit_code(status: WaitStatus) -> Option<u8> {
    let low_byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(low_byte(code)),
        (None, Some(signal)) => Some(low_byte(128 + signal)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_of_a_name_with_brackets_is_parsed() {
        assert_eq!(state_and_group("12 (a) Z (b) R 1 77 77 0 -1"), Some(('R', 77)));
        assert_eq!(state_and_group("12 (a b) Z 1 8 8"), Some(('Z', 8)));
        assert_eq!(state_and_group("12"), None);
    }
}
