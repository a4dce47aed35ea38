//! The sentinel: a process that ends the command's whole group if `run` itself is killed.
//!
//! The command dies with `run` (see `child.rs`), but its children do not, and the lease is no longer renewed. The sentinel
//! reads from a pipe whose other end only `run` has. If the pipe closes without a message, `run` is dead. The sentinel is not
//! in the group itself, so that it does not count as a live process of it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::command::OWN_BINARY;
use crate::failure::USAGE;

/// The hidden verb.
pub(crate) const VERB: &str = "__sentinel";

/// The handle of `run` on its sentinel. When it is dropped, or when `run` dies, the group is ended.
#[derive(Debug)]
pub(crate) struct Sentinel {
    pipe: ChildStdin,
}

impl Sentinel {
    /// Starts to watch a group. `None` if the sentinel cannot be started: then only the command dies with `run`.
    pub(crate) fn watch(group: Pid) -> Option<Sentinel> {
        let mut command = Command::new(OWN_BINARY);
        command.args([VERB, &group.as_raw_nonzero().to_string()]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let pipe = command.spawn().ok()?.stdin.take()?;
        Some(Sentinel { pipe })
    }

    /// Ends the sentinel without ending the group.
    pub(crate) fn dismiss(mut self) {
        // A dead sentinel need not be dismissed.
        let _ = self.pipe.write_all(b".");
    }
}

/// Waits for a message of `run`, and ends the group if the pipe closes without one.
pub(crate) fn watch_over(words: &[OsString]) -> u8 {
    let group = words.first().and_then(|word| word.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let Some(group) = group else {
        eprintln!("lockkeeper: {VERB} is internal to `lockkeeper run`");
        return USAGE;
    };
    let mut word = [0];
    loop {
        match io::stdin().read(&mut word) {
            Ok(0) => {
                let _ = kill_process_group(group, Signal::KILL);
                return 0;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return 0,
        }
    }
}
