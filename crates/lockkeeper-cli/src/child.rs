//! The process between `run` and its command: ties its life to `run` and then becomes the command.
//!
//! The signal at the parent's death and the terminal's foreground have to be set in the child, which would need unsafe
//! code between fork and exec. So `run` starts this binary again, which sets them for itself and then execs.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpgrp, getppid, set_parent_process_death_signal};

use crate::client::Output;
use crate::failure::{Failure, OTHER, USAGE};
use crate::run::terminal;

/// The hidden verb.
pub(crate) const VERB: &str = "__child";

/// Exit code of shells for a command that does not exist.
pub(crate) const NOT_FOUND: u8 = 127;
/// Exit code of shells for a command that cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// Settings of the child, passed as command-line arguments.
pub(crate) struct ChildSettings {
    pub(crate) parent: Pid,
    /// Whether to put the child's process group into the terminal's foreground.
    pub(crate) foreground: bool,
    pub(crate) json: bool,
}

impl ChildSettings {
    pub(crate) fn to_arguments(&self) -> [String; 4] {
        let flag = |is_set| if is_set { "1" } else { "0" }.to_owned();
        [VERB.to_owned(), self.parent.as_raw_nonzero().to_string(), flag(self.foreground), flag(self.json)]
    }

    fn parse(words: &[OsString]) -> Option<(ChildSettings, &[OsString])> {
        let [parent, foreground, json, command @ ..] = words else { return None };
        let parent = Pid::from_raw(parent.to_str()?.parse().ok()?)?;
        Some((ChildSettings { parent, foreground: foreground == "1", json: json == "1" }, command))
    }
}

/// Becomes the command. Returns an exit code only if that failed.
pub(crate) fn exec_command(words: &[OsString]) -> u8 {
    let Some((settings, [program, arguments @ ..])) = ChildSettings::parse(words) else {
        eprintln!("lockkeeper: {VERB} is internal to `lockkeeper run`");
        return USAGE;
    };
    // If `run` is killed, the lease is no longer renewed: this process has to die too. The setting survives exec, except for
    // set-user-id programs.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    // `run` may have been killed before the line above.
    if tied.is_ok() && getppid() != Some(settings.parent) {
        return OTHER;
    }
    if settings.foreground {
        terminal::set_foreground(getpgrp());
    }
    let error = Command::new(program).args(arguments).exec();
    let failure = cannot_start(program, &error);
    failure.print(if settings.json { Output::Json } else { Output::Table });
    failure.exit
}

/// The failure of a command that cannot be started.
pub(crate) fn cannot_start(program: &OsString, error: &io::Error) -> Failure {
    let program = program.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            "command_not_found",
            NOT_FOUND,
            format!("command not found: {program}. Check its name and PATH, or give its full path"),
        ),
        _ => Failure::new(
            "command_not_executable",
            NOT_EXECUTABLE,
            format!("failed to execute {program}: {error}"),
        ),
    }
}
