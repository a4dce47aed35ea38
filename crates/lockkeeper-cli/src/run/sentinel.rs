//! The sentinel: a process that ends the command's whole group if `run` itself is killed.
//!
//! The command dies with `run` (see `child.rs`), but what it has started does not, and nobody renews the lease any more.
//! The sentinel holds the end of a pipe whose other end only `run` has. If that closes without a word, `run` is gone. It
//! stands beside the group, not in it: it must not count among those that are still at work.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::command::OURSELVES;
use crate::failure::USAGE;

/// The first word that leads here.
pub(crate) const VERB: &str = "__sentinel";

/// The sentinel as `run` has it. Dropped, or gone with `run`, it ends the group.
#[derive(Debug)]
pub(crate) struct Sentinel {
    line: ChildStdin,
}

impl Sentinel {
    /// Watches over a group from now on. Nothing if there can be none: then the command alone dies with `run`.
    pub(crate) fn watch(group: Pid) -> Option<Sentinel> {
        let mut command = Command::new(OURSELVES);
        command.args([VERB, &group.as_raw_nonzero().to_string()]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let line = command.spawn().ok()?.stdin.take()?;
        Some(Sentinel { line })
    }

    /// All is over: whatever is left of the group is nobody's business.
    pub(crate) fn dismiss(mut self) {
        // If it is gone, there is nobody to be dismissed.
        let _ = self.line.write_all(b".");
    }
}

/// Waits for a word of `run`, and ends the group if there will be none.
pub(crate) fn stand(words: &[OsString]) -> u8 {
    let group = words.first().and_then(|word| word.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let Some(group) = group else {
        eprintln!("lockkeeper: {VERB} is for `lockkeeper run` alone");
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
