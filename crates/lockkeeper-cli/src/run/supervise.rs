//! Supervises the command from its start to its end.

use std::time::Duration;

use lockkeeper::{Fencing, Guard, GuardState};
use rustix::process::{Signal, WaitStatus};

use super::command::{self, RunningCommand};
use super::lease::{self, Margins};
use super::signals::Signals;
use super::terminal;

/// Maximum sleep between two readings of the clock: timers do not advance while the machine is suspended.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// Interval at which a group is checked for live processes. There is no event for processes that are not our children.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum wait after KILL for the group to end, once the lease is lost.
const KILL_WAIT_MAX: Duration = Duration::from_secs(1);

/// The end of the command.
#[derive(Debug)]
pub(crate) enum End {
    /// The command ended while the lock was held.
    ByItself { code: u8 },
    /// The lease was lost, or about to be, and the command was ended.
    Lost {
        why: String,
        /// Whether a process survived KILL.
        survived_kill: bool,
    },
}

/// Supervises a command.
pub(crate) struct Supervisor {
    command: RunningCommand,
    signals: Signals,
    margins: Margins,
    keep_group: bool,
    /// The command's exit code, once it has one.
    code: Option<u8>,
    /// Whether the command was stopped because it needs the terminal.
    wants_terminal: bool,
    ending: Option<Ending>,
}

/// The state of a group that was told to end.
#[derive(Debug)]
struct Ending {
    /// Why the lease is lost; `None` if the command has ended and only its group is left.
    lost: Option<String>,
    kill_at: Duration,
    killed_at: Option<Duration>,
}

impl Supervisor {
    pub(crate) fn new(
        command: RunningCommand,
        signals: Signals,
        margins: Margins,
        keep_group: bool,
    ) -> Supervisor {
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
                    // The command has ended; other processes of its group have not.
                    self.start_ending(
                        now,
                        deadline,
                        (!is_held).then(|| "its lease ended with the command".to_owned()),
                    );
                } else if !is_held {
                    let why = guard.lost().await;
                    self.start_ending(now, deadline, Some(why.to_string()));
                } else if now >= self.margins.term_at(deadline) {
                    self.start_ending(now, deadline, Some("it could not be renewed in time".to_owned()));
                }
            }
            self.kill_if_due(now);
            self.move_to_foreground();
            let pause = self.pause(lease::now(), deadline);
            tokio::select! {
                biased;
                signal = self.signals.next() => self.forward(signal),
                _ = guard.lost(), if self.ending.is_none() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The result, once the command and its group have ended.
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
                let gave_up = killed_at.is_some_and(|killed_at| now >= killed_at + KILL_WAIT_MAX);
                (is_gone || gave_up).then(|| End::Lost { why: why.clone(), survived_kill: !is_gone })
            }
        }
    }

    fn start_ending(&mut self, now: Duration, deadline: Duration, lost: Option<String>) {
        self.command.terminate();
        self.ending = Some(Ending { lost, kill_at: self.margins.kill_at(now, deadline), killed_at: None });
    }

    fn kill_if_due(&mut self, now: Duration) {
        if let Some(ending) = &mut self.ending
            && now >= ending.kill_at
        {
            // Repeated, because a process that is being forked can miss the signal.
            self.command.signal(Signal::KILL);
            ending.killed_at.get_or_insert(now);
        }
    }

    fn pause(&self, now: Duration, deadline: Duration) -> Duration {
        match &self.ending {
            None => self.margins.term_at(deadline).saturating_sub(now).min(SLEEP_MAX),
            Some(Ending { killed_at: None, kill_at, .. }) => kill_at.saturating_sub(now).min(POLL_INTERVAL),
            Some(_) => POLL_INTERVAL,
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

    /// Handles a stopped command. A command stopped by STOP stays stopped.
    fn on_stop(&mut self, signal: i32) {
        if signal == Signal::TSTP.as_raw() {
            // Ctrl-Z: the shell does not know the command, so it could not continue it.
            self.command.signal(Signal::CONT);
        } else if signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw() {
            self.wants_terminal = true;
        }
    }

    /// Gives the terminal to a command that was stopped for lack of it, once the terminal is ours.
    fn move_to_foreground(&mut self) {
        if self.wants_terminal && terminal::is_ours() {
            self.wants_terminal = false;
            terminal::set_foreground(self.command.pid);
            self.command.signal(Signal::CONT);
        }
    }

    fn forward(&mut self, signal: Signal) {
        match signal {
            // Children are reaped in every round. Ctrl-Z is ignored.
            Signal::CHILD | Signal::TSTP => {}
            signal => self.command.signal(signal),
        }
    }
}
