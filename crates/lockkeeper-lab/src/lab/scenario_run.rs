//! One run of a scenario: its servers, clients, resource and events.

use std::path::Path;
use std::time::Duration;

use super::client::Step;
use super::client_process::{ClientProcess, ClientSettings};
use super::engine::EngineName;
use super::error::LabError;
use super::event::EventKind;
use super::event_log::EventLog;
use super::outcome::{Case, Findings, Mode};
use super::resource::Resource;
use super::server_pool::{ServerPool, Topology};
use crate::servers::Servers;

/// Time limit for a lease to end: a lease of Consul may live for twice its 10 s.
pub(crate) const LEASE_END_MAX: Duration = Duration::from_secs(60);

/// One run of a scenario.
pub(crate) struct ScenarioRun<'a> {
    pub(crate) engine: EngineName,
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) pool: &'a mut ServerPool,
    pub(crate) resource: Resource,
    pub(crate) events: EventLog,
    pub(crate) findings: Findings,
    /// Number of client groups so far.
    pub(crate) groups: usize,
    /// Receives status messages.
    pub(crate) progress: &'a dyn Fn(&str),
    program: &'a Path,
    /// A lock name that no earlier run has used.
    lock: String,
}

/// A holder, and a rival that waits for the same lock.
pub(crate) struct Pair {
    pub(crate) holder: ClientProcess,
    pub(crate) rival: ClientProcess,
}

impl<'a> ScenarioRun<'a> {
    pub(crate) fn new(
        case: Case,
        seed: u64,
        lock: String,
        program: &'a Path,
        pool: &'a mut ServerPool,
        progress: &'a dyn Fn(&str),
    ) -> Result<ScenarioRun<'a>, LabError> {
        let Case { engine, mode, .. } = case;
        let resource = Resource::serve(mode == Mode::Fenced)
            .map_err(LabError::io("failed to open a port for the resource"))?;
        let (events, findings) = (EventLog::default(), Findings::default());
        Ok(ScenarioRun {
            engine,
            mode,
            seed,
            pool,
            resource,
            events,
            findings,
            groups: 0,
            progress,
            program,
            lock,
        })
    }

    pub(crate) fn report_progress(&self, text: &str) {
        (self.progress)(text);
    }

    pub(crate) fn servers(&mut self, topology: Topology) -> Result<&mut Servers, LabError> {
        Ok(self.pool.servers(self.engine, topology)?)
    }

    pub(crate) fn ttl(&self, wanted: Duration) -> Duration {
        self.engine.ttl(wanted)
    }

    /// Records a broken claim if the lock of a silent holder was not granted to its rival after the lease.
    pub(crate) fn check_handover(&mut self, granted: &[bool]) {
        let stuck = granted.iter().filter(|granted| !**granted).count();
        if stuck > 0 {
            let seconds = LEASE_END_MAX.as_secs();
            self.findings.broken = Some(format!(
                "{stuck} locks of silent holders were not granted to others within {seconds} s"
            ));
        }
    }

    /// Starts a client process for the lock with this number.
    pub(crate) fn client(
        &self,
        name: &str,
        url: &str,
        number: usize,
        ttl: Duration,
    ) -> Result<ClientProcess, LabError> {
        let settings = ClientSettings {
            name: name.to_owned(),
            url: url.to_owned(),
            lock: format!("{}-{number}", self.lock),
            ttl: self.ttl(ttl),
        };
        ClientProcess::start(self.program, &settings, &self.resource.address.to_string(), &self.events)
    }

    /// Starts pairs of a holder and a rival, each with its own lock. Holders and rivals have separate URLs, so that only the
    /// holders can be cut off.
    pub(crate) fn pairs(
        &self,
        count: usize,
        (holders_url, rivals_url): (&str, &str),
        ttl: Duration,
    ) -> Result<Vec<Pair>, LabError> {
        (1..=count)
            .map(|number| {
                let name =
                    |letter: &str| if count == 1 { letter.to_owned() } else { format!("{letter}{number}") };
                let holder = self.client(&name("A"), holders_url, number, ttl)?;
                let rival = self.client(&name("B"), rivals_url, number, ttl)?;
                Ok(Pair { holder, rival })
            })
            .collect()
    }
}

/// All holders acquire their locks and read.
pub(crate) fn acquire_and_read(pairs: &mut [Pair]) -> Result<(), LabError> {
    for pair in pairs.iter_mut() {
        pair.holder.acquire(LEASE_END_MAX)?;
        pair.holder.perform(&Step::Read)?;
    }
    Ok(())
}

/// All rivals request the locks of the holders.
pub(crate) fn request_all(pairs: &mut [Pair]) -> Result<(), LabError> {
    for pair in pairs.iter_mut() {
        pair.rival.send(&Step::Acquire { wait_ms: LEASE_END_MAX.as_millis() as u64 })?;
    }
    Ok(())
}

/// A client that holds the lock reads and writes.
pub(crate) fn read_and_write(client: &mut ClientProcess) -> Result<(), LabError> {
    client.perform(&Step::Read)?;
    client.perform(&Step::Write).map(drop)
}

/// Waits for the grants of the rivals; each that is granted in time reads and writes. Returns for each whether it was.
pub(crate) fn run_rivals(pairs: &mut [Pair], within: Duration) -> Result<Vec<bool>, LabError> {
    let deadline = std::time::Instant::now() + within;
    let mut results = Vec::new();
    for pair in pairs.iter_mut() {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let granted = matches!(pair.rival.answer_within(left)?, Some(EventKind::Granted { .. }));
        if granted {
            read_and_write(&mut pair.rival)?;
        }
        results.push(granted);
    }
    Ok(results)
}

/// The holders write what follows from their read and release; rivals that still wait get the lock, write and release.
pub(crate) fn resume_holders(pairs: &mut [Pair], granted: &[bool]) -> Result<(), LabError> {
    for (pair, was_granted) in pairs.iter_mut().zip(granted) {
        pair.holder.perform(&Step::Write)?;
        pair.holder.perform(&Step::Release)?;
        if !was_granted && matches!(pair.rival.answer()?, EventKind::Granted { .. }) {
            read_and_write(&mut pair.rival)?;
        }
        pair.rival.perform(&Step::Release)?;
    }
    Ok(())
}
