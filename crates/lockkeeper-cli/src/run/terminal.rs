//! The terminal. The command's process group must be in the foreground to read from it and to get Ctrl-C.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use nix::sys::signal::SigSet;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Blocks SIGTTOU in this thread, so that a background process may set the foreground and write. The command does not
/// inherit this: std clears the mask before exec.
pub(crate) fn never_stop_for_output() {
    let mut mask = SigSet::empty();
    mask.add(nix::sys::signal::Signal::SIGTTOU);
    // Fails only for an invalid mask.
    let _ = mask.thread_block();
}

/// Whether to give the terminal to the command from the start: it is ours, and the command reads and writes it. In a
/// pipeline (`run .. | less`) other processes use it as well: the command gets it when it asks for it.
pub(crate) fn is_the_commands() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && is_ours()
}

/// Whether our process group is in the foreground.
pub(crate) fn is_ours() -> bool {
    tty().is_some_and(|tty| tcgetpgrp(&tty).is_ok_and(|group| group == getpgrp()))
}

/// Puts a process group into the foreground.
pub(crate) fn to_foreground(group: Pid) {
    never_stop_for_output();
    if let Some(tty) = tty() {
        // Without it, the command runs in the background.
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
