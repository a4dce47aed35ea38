//! Supervises the command from its start to its end.

use std::time::Duration;

use lockkeeper::{Fencing, Guard, GuardState};
use rustix::process::{Signal, WaitStatus};

use super::command::{self, Started};
use super::lease::{self, Margins};
use super::signals::Signals;
use super::terminal;

/// The longest sleep between two looks at the clock: timers stand still while the machine is suspended.
const SLICE: Duration = Duration::from_millis(200);
/// How often to check whether a group is gone. There is no event for processes that are not our children.
const LOOK: Duration = Duration::from_millis(10);
/// How long to wait after KILL for the group to be gone, once the lease is lost.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// The end of the command.
#[derive(Debug)]
pub(crate) enum End {
    /// The command ended while the lock was held.
    ByItself { code: u8 },
    /// The lease was lost, or about to be, and the command was ended.
    Lost {
        why: String,
        /// It survived KILL.
        left_over: bool,
    },
}

/// Supervises a command.
pub(crate) struct Supervisor {
    command: Started,
    signals: Signals,
    margins: Margins,
    keep_group: bool,
    /// The command's exit code, once it has one.
    code: Option<u8>,
    /// The command was stopped because it wants the terminal.
    wants_terminal: bool,
    ending: Option<Ending>,
}

/// The group was told to end.
#[derive(Debug)]
struct Ending {
    /// Why the lease is lost; `None` if the command has ended and only its group is left.
    lost: Option<String>,
    kill_at: Duration,
    killed_at: Option<Duration>,
}

impl Supervisor {
    pub(crate) fn new(command: Started, signals: Signals, margins: Margins, keep_group: bool) -> Supervisor {
        Supervisor { command, signals, margins, keep_group, code: None, wants_terminal: false, ending: None }
    }

    /// Waits until the command and its group have ended, or ends them before the lease does.
    pub(crate) async fn until_end<F: Fencing>(mut self, guard: &Guard<F>) -> End {
        let end = self.watch(guard).await;
        terminal::take_back(self.command.pid);
        end
    }

    async fn watch<F: Fencing>(&mut self, guard: &Guard<F>) -> End {
        // The last known deadline. It outlives the guard, because a lost guard has none.
        let mut deadline = lease::now() + guard.remaining();
        loop {
            // Clock first, then guard: the sum is never later than the guard's own deadline.
            let now = lease::now();
            let is_held = guard.state() == GuardState::Held;
            if is_held {
                deadline = deadline.max(now + guard.remaining());
            }
            self.reap();
            if let Some(end) = self.end(now) {
                return end;
            }
            if self.ending.is_none() {
                if self.code.is_some() {
                    // The command has ended; others of its group have not.
                    self.begin_to_end(
                        now,
                        deadline,
                        (!is_held).then(|| "its lease ended with the command".to_owned()),
                    );
                } else if !is_held {
                    let why = guard.lost().await;
                    self.begin_to_end(now, deadline, Some(why.to_string()));
                } else if now >= self.margins.term_at(deadline) {
                    self.begin_to_end(now, deadline, Some("it could not be renewed in time".to_owned()));
                }
            }
            self.kill_if_due(now);
            self.lend_terminal();
            let pause = self.pause(lease::now(), deadline);
            tokio::select! {
                biased;
                signal = self.signals.next() => self.pass_on(signal),
                _ = guard.lost(), if self.ending.is_none() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Whether all is over.
    fn end(&mut self, now: Duration) -> Option<End> {
        match (&self.ending, self.code) {
            (None, Some(code)) if self.keep_group || !self.command.is_alive() => Some(End::ByItself { code }),
            (None, _) => None,
            (Some(Ending { lost: None, .. }), Some(code)) => {
                (!self.command.is_alive()).then_some(End::ByItself { code })
            }
            (Some(Ending { lost: None, .. }), None) => None,
            (Some(Ending { lost: Some(why), killed_at, .. }), code) => {
                let is_gone = code.is_some() && !self.command.is_alive();
                let is_hopeless = killed_at.is_some_and(|killed_at| now >= killed_at + LAST_LOOK);
                (is_gone || is_hopeless).then(|| End::Lost { why: why.clone(), left_over: !is_gone })
            }
        }
    }

    fn begin_to_end(&mut self, now: Duration, deadline: Duration, lost: Option<String>) {
        self.command.terminate();
        self.ending = Some(Ending { lost, kill_at: self.margins.kill_at(now, deadline), killed_at: None });
    }

    fn kill_if_due(&mut self, now: Duration) {
        if let Some(ending) = &mut self.ending
            && now >= ending.kill_at
        {
            // Repeated, for processes that were being forked the first time.
            self.command.signal(Signal::KILL);
            ending.killed_at.get_or_insert(now);
        }
    }

    fn pause(&self, now: Duration, deadline: Duration) -> Duration {
        match &self.ending {
            None => self.margins.term_at(deadline).saturating_sub(now).min(SLICE),
            Some(Ending { killed_at: None, kill_at, .. }) => kill_at.saturating_sub(now).min(LOOK),
            Some(_) => LOOK,
        }
    }

    fn reap(&mut self) {
        let leader = self.command.pid;
        let mut stopped: Option<WaitStatus> = None;
        command::reap(|pid, status| {
            if pid != leader {
                return;
            }
            match command::exit_code(status) {
                Some(code) => self.code = Some(code),
                None => stopped = Some(status),
            }
        });
        if let Some(signal) = stopped.and_then(WaitStatus::stopping_signal) {
            self.on_stop(signal);
        }
    }

    /// Handles a stopped command. A deliberate STOP is respected.
    fn on_stop(&mut self, signal: i32) {
        if signal == Signal::TSTP.as_raw() {
            // Ctrl-Z: the shell does not know the command, so it could never be continued.
            self.command.signal(Signal::CONT);
        } else if signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw() {
            self.wants_terminal = true;
        }
    }

    /// Gives the terminal to a command that was stopped because it wants it, once the terminal is ours.
    fn lend_terminal(&mut self) {
        if self.wants_terminal && terminal::is_ours() {
            self.wants_terminal = false;
            terminal::to_foreground(self.command.pid);
            self.command.signal(Signal::CONT);
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            // Children are reaped in any case. Ctrl-Z is not for us.
            Signal::CHILD | Signal::TSTP => {}
            signal => self.command.signal(signal),
        }
    }
}
