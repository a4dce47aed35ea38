//! A client process, seen from the lab: told what to do, stopped, killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_testkit::{Signal, bound_to_us};
use rustix::process::{Pid, kill_process};

use super::client::Step;
use super::error::LabError;
use super::event::{Event, What};
use super::record::{Found, Record};

/// Longer than any step takes on a busy machine, but for waits, which say so themselves.
const LONG: Duration = Duration::from_secs(120);

/// How a client process is started.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) lock: String,
    pub(crate) ttl: Duration,
}

/// A client process. It ends with this value.
pub(crate) struct Actor {
    pub(crate) name: String,
    process: Child,
    orders: Option<ChildStdin>,
    record: Record,
    /// Up to where we have read what it said.
    place: usize,
}

impl Actor {
    pub(crate) fn start(
        binary: &std::path::Path,
        part: &Part,
        resource: &str,
        record: &Record,
    ) -> Result<Actor, LabError> {
        let mut command = bound_to_us(None);
        command.arg(binary).args(["lab", "client", "--url", &part.url, "--name", &part.name]);
        command.args(["--lock", &part.lock, "--resource", resource]);
        command.args(["--ttl-ms", &part.ttl.as_millis().to_string()]);
        command.env("LOCKKEEPER_LOG", "error");
        // A group of its own: when the shell that started the lab ends, the kernel lets stopped processes of its group go
        // on, and a holder that was to be paused would renew its lease.
        command.process_group(0);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().map_err(
                LabError::io("a client process cannot be started (setpriv of util-linux is needed)"),
            )?;
        let orders = process.stdin.take();
        let place = record.place();
        if let Some(stdout) = process.stdout.take() {
            let (record, name) = (record.clone(), part.name.clone());
            std::thread::spawn(move || listen(stdout, &record, &name));
        }
        let mut actor = Actor { name: part.name.clone(), process, orders, record: record.clone(), place };
        actor.until_ready()?;
        Ok(actor)
    }

    fn until_ready(&mut self) -> Result<(), LabError> {
        match self.receive(LONG)? {
            Some(Event { what: What::Ready, .. }) => Ok(()),
            Some(event) => Err(self.failed(event.what.words())),
            None => {
                Err(self.failed("it did not get ready; look for what else keeps the machine busy".to_owned()))
            }
        }
    }

    fn failed(&self, why: String) -> LabError {
        LabError::Client { client: self.name.clone(), why }
    }

    /// Tells it what to do; the answer comes later. A stopped process does it when it goes on.
    pub(crate) fn tell(&mut self, step: &Step) -> Result<(), LabError> {
        let mut line = serde_json::to_string(step).map_err(|error| self.failed(error.to_string()))?;
        line.push('\n');
        let orders = self.orders.as_mut();
        let told = orders.map(|orders| orders.write_all(line.as_bytes()).and_then(|()| orders.flush()));
        match told {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failed("it has ended by itself".to_owned())),
        }
    }

    fn receive(&mut self, within: Duration) -> Result<Option<Event>, LabError> {
        match self.record.next_of(&self.name, &mut self.place, within) {
            Found::Event(Event { what: What::Failed { why }, .. }) => Err(self.failed(why)),
            Found::Event(event) => Ok(Some(event)),
            Found::TimeOver => Ok(None),
            Found::Gone => Err(self.failed("it has ended by itself; its own words are above".to_owned())),
        }
    }

    /// Its next answer, if it comes in time.
    pub(crate) fn answer_within(&mut self, within: Duration) -> Result<Option<What>, LabError> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.receive(left)? {
                Some(event) if event.what.is_answer() => return Ok(Some(event.what)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Its next answer.
    pub(crate) fn answer(&mut self) -> Result<What, LabError> {
        let answer = self.answer_within(LONG)?;
        answer.ok_or_else(|| {
            self.failed("it gave no answer; look for what else keeps the machine busy".to_owned())
        })
    }

    /// Waits until it has asked for the lock.
    pub(crate) fn until_it_asks(&mut self) -> Result<(), LabError> {
        loop {
            match self.receive(LONG)? {
                Some(Event { what: What::Asks, .. }) => return Ok(()),
                Some(_) => {}
                None => return Err(self.failed("it does not ask".to_owned())),
            }
        }
    }

    /// Tells it to do something, and waits for the answer.
    pub(crate) fn does(&mut self, step: &Step) -> Result<What, LabError> {
        self.tell(step)?;
        self.answer()
    }

    /// Takes the lock, which has to succeed.
    pub(crate) fn acquires(&mut self, wait: Duration) -> Result<(), LabError> {
        match self.does(&Step::Acquire { wait_ms: wait.as_millis() as u64 })? {
            What::Granted { .. } => Ok(()),
            other => Err(self.failed(format!("it should hold the lock, but {}", other.words()))),
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    /// SIGSTOP, and waits until it has stopped.
    pub(crate) fn stop(&mut self) -> Result<(), LabError> {
        self.signal(Signal::STOP);
        let until = Instant::now() + LONG;
        while !self.is_stopped() {
            if Instant::now() > until {
                return Err(self.failed("it does not stop".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.record.fault_begins("SIGSTOP", Some(&self.name));
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }

    /// SIGCONT. Fails if somebody else has let it go on before: then there was no pause.
    pub(crate) fn go_on(&mut self) -> Result<(), LabError> {
        if !self.is_stopped() {
            return Err(self.failed("somebody else has let it go on: run it again".to_owned()));
        }
        // First the note: what it does next must not come before it.
        self.record.fault_ends("SIGCONT", Some(&self.name));
        self.signal(Signal::CONT);
        Ok(())
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.record.fault_begins("SIGKILL", Some(&self.name));
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes down what a client says.
fn listen(stdout: ChildStdout, record: &Record, name: &str) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Ok(event) = serde_json::from_str::<Event>(&line) {
            record.write(event);
        }
    }
    record.gone(name);
}
