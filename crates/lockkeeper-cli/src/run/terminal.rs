//! The terminal. The command's process group must be in the foreground to read from it and to get Ctrl-C.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use nix::sys::signal::SigSet;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Blocks SIGTTOU in this thread, so that a background process may set the foreground and write. The command does not
/// inherit this: std clears the mask before exec.
pub(crate) fn block_sigttou() {
    let mut mask = SigSet::empty();
    mask.add(nix::sys::signal::Signal::SIGTTOU);
    // Fails only for an invalid mask.
    let _ = mask.thread_block();
}

/// Whether the command gets the terminal from the start: it is ours, and it is both stdin and stdout. In a pipeline
/// (`run .. | less`) other processes use it too, so the command gets it only when it needs it.
pub(crate) fn belongs_to_command() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && is_ours()
}

/// Whether our process group is in the foreground.
pub(crate) fn is_ours() -> bool {
    tty().is_some_and(|tty| tcgetpgrp(&tty).is_ok_and(|group| group == getpgrp()))
}

/// Puts a process group into the foreground.
pub(crate) fn set_foreground(group: Pid) {
    block_sigttou();
    if let Some(tty) = tty() {
        // On failure, the command runs in the background.
        let _ = tcsetpgrp(&tty, group);
    }
}

/// Takes the terminal back from a group that has it.
pub(crate) fn take_back(group: Pid) {
    if let Some(tty) = tty()
        && tcgetpgrp(&tty).is_ok_and(|foreground| foreground == group)
    {
        let _ = tcsetpgrp(&tty, getpgrp());
    }
}

/// The controlling terminal, whatever stdin is.
fn tty() -> Option<OwnedFd> {
    open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).ok()
}
