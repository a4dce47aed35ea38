//! A client process as the lab controls it: steps, pauses, kills.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_testkit::{Signal, child_command};
use rustix::process::{Pid, kill_process};

use super::client::Step;
use super::error::LabError;
use super::event::{Event, EventKind};
use super::event_log::{EventLog, Next};

/// Time limit for a step on a busy machine. Waits have limits of their own.
const STEP_WITHIN: Duration = Duration::from_secs(120);

/// Settings of a client process.
#[derive(Debug, Clone)]
pub(crate) struct ClientSettings {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) lock: String,
    pub(crate) ttl: Duration,
}

/// A client process. It is killed when this value is dropped.
pub(crate) struct ClientProcess {
    pub(crate) name: String,
    process: Child,
    stdin: Option<ChildStdin>,
    events: EventLog,
    /// Position in the log behind the last event that was read.
    position: usize,
}

impl ClientProcess {
    pub(crate) fn start(
        binary: &std::path::Path,
        settings: &ClientSettings,
        resource: &str,
        events: &EventLog,
    ) -> Result<ClientProcess, LabError> {
        let mut command = child_command(None);
        command.arg(binary).args(["client", "--url", &settings.url, "--name", &settings.name]);
        command.args(["--lock", &settings.lock, "--resource", resource]);
        command.args(["--ttl-ms", &settings.ttl.as_millis().to_string()]);
        command.env("LOCKKEEPER_LOG", "error");
        // A separate process group: when the shell that started the lab exits, the kernel resumes stopped processes of
        // its group, and a paused holder would renew its lease.
        command.process_group(0);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().map_err(
                LabError::io("failed to start a client process (setpriv of util-linux is needed)"),
            )?;
        let stdin = process.stdin.take();
        let position = events.position();
        if let Some(stdout) = process.stdout.take() {
            let (events, name) = (events.clone(), settings.name.clone());
            std::thread::spawn(move || read_events(stdout, &events, &name));
        }
        let mut client =
            ClientProcess { name: settings.name.clone(), process, stdin, events: events.clone(), position };
        client.wait_until_ready()?;
        Ok(client)
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        match self.receive(STEP_WITHIN)? {
            Some(Event { what: EventKind::Ready, .. }) => Ok(()),
            Some(event) => Err(self.failed(event.what.describe())),
            None => Err(self.failed("it did not get ready; check the load of this machine".to_owned())),
        }
    }

    fn failed(&self, why: String) -> LabError {
        LabError::Client { client: self.name.clone(), why }
    }

    /// Sends a step; the answer comes later. A paused process runs it when it is resumed.
    pub(crate) fn send(&mut self, step: &Step) -> Result<(), LabError> {
        let mut line = serde_json::to_string(step).map_err(|error| self.failed(error.to_string()))?;
        line.push('\n');
        let stdin = self.stdin.as_mut();
        let sent = stdin.map(|stdin| stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failed("it exited".to_owned())),
        }
    }

    fn receive(&mut self, within: Duration) -> Result<Option<Event>, LabError> {
        match self.events.next_of(&self.name, &mut self.position, within) {
            Next::Event(Event { what: EventKind::Failed { why }, .. }) => Err(self.failed(why)),
            Next::Event(event) => Ok(Some(event)),
            Next::Timeout => Ok(None),
            Next::Exited => Err(self.failed("it exited; its own error is above".to_owned())),
        }
    }

    /// Waits for its next answer; `None` if it does not come in time.
    pub(crate) fn answer_within(&mut self, within: Duration) -> Result<Option<EventKind>, LabError> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receive(left)? {
                Some(event) if event.what.is_answer() => return Ok(Some(event.what)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits for its next answer.
    pub(crate) fn answer(&mut self) -> Result<EventKind, LabError> {
        let answer = self.answer_within(STEP_WITHIN)?;
        answer.ok_or_else(|| self.failed("it did not answer; check the load of this machine".to_owned()))
    }

    /// Waits until it has requested the lock.
    pub(crate) fn wait_until_requested(&mut self) -> Result<(), LabError> {
        loop {
            match self.receive(STEP_WITHIN)? {
                Some(Event { what: EventKind::Asks, .. }) => return Ok(()),
                Some(_) => {}
                None => return Err(self.failed("it did not request the lock".to_owned())),
            }
        }
    }

    /// Sends a step and waits for the answer.
    pub(crate) fn perform(&mut self, step: &Step) -> Result<EventKind, LabError> {
        self.send(step)?;
        self.answer()
    }

    /// Acquires the lock; it is an error if that fails.
    pub(crate) fn acquire(&mut self, wait: Duration) -> Result<(), LabError> {
        match self.perform(&Step::Acquire { wait_ms: wait.as_millis() as u64 })? {
            EventKind::Granted { .. } => Ok(()),
            other => Err(self.failed(format!("expected a grant, but it {}", other.describe()))),
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    /// Sends SIGSTOP and waits until the process is stopped.
    pub(crate) fn pause(&mut self) -> Result<(), LabError> {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + STEP_WITHIN;
        while !self.is_stopped() {
            if Instant::now() > deadline {
                return Err(self.failed("it did not stop".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.events.fault_begins("SIGSTOP", Some(&self.name));
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }

    /// Sends SIGCONT. Fails if another process resumed it before: then there was no pause.
    pub(crate) fn resume(&mut self) -> Result<(), LabError> {
        if !self.is_stopped() {
            return Err(self.failed("another process resumed it: run it again".to_owned()));
        }
        // Logged first: its next event must come after it.
        self.events.fault_ends("SIGCONT", Some(&self.name));
        self.signal(Signal::CONT);
        Ok(())
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.events.fault_begins("SIGKILL", Some(&self.name));
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Copies the events of a client into the log.
fn read_events(stdout: ChildStdout, events: &EventLog, name: &str) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Ok(event) = serde_json::from_str::<Event>(&line) {
            events.push(event);
        }
    }
    events.mark_exited(name);
}
