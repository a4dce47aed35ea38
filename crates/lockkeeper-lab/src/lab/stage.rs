//! What a scenario is played with: servers, clients, the resource, and what is written down.

use std::time::Duration;

use super::actor::{Actor, Part};
use super::client::Step;
use super::engine::EngineName;
use super::error::LabError;
use super::event::What;
use super::outcome::{Findings, Mode};
use super::record::Record;
use super::resource::Resource;
use super::yard::{Servers, Shape, Yard};

/// Long enough for any lease to end: that of Consul may take twice its 10 s.
const TURN: Duration = Duration::from_secs(60);

/// The stage of one run.
pub(crate) struct Stage<'a> {
    pub(crate) engine: EngineName,
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) yard: &'a mut Yard,
    pub(crate) resource: Resource,
    pub(crate) record: Record,
    pub(crate) findings: Findings,
    /// How many crowds there have been.
    pub(crate) crowds: usize,
    /// Tells people how far it is.
    pub(crate) progress: &'a dyn Fn(&str),
    /// A lock name that no earlier run has used.
    lock: String,
}

/// A holder, and the one who wants the lock after it.
pub(crate) struct Pair {
    pub(crate) holder: Actor,
    pub(crate) rival: Actor,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(
        (engine, mode, seed): (EngineName, Mode, u64),
        lock: String,
        yard: &'a mut Yard,
        progress: &'a dyn Fn(&str),
    ) -> Result<Stage<'a>, LabError> {
        let resource = Resource::serve(mode == Mode::Fenced)
            .map_err(LabError::io("no port for the resource can be opened"))?;
        let (record, findings) = (Record::default(), Findings::default());
        Ok(Stage { engine, mode, seed, yard, resource, record, findings, crowds: 0, progress, lock })
    }

    pub(crate) fn say(&self, text: &str) {
        (self.progress)(text);
    }

    pub(crate) fn servers(&mut self, shape: Shape) -> Result<&mut Servers, LabError> {
        Ok(self.yard.servers(self.engine, shape)?)
    }

    pub(crate) fn ttl(&self, wanted: Duration) -> Duration {
        self.engine.ttl(wanted)
    }

    /// The lock of a holder that is not heard of any more must pass on when its lease is over.
    pub(crate) fn must_pass_on(&mut self, let_in: &[bool]) {
        let stuck = let_in.iter().filter(|let_in| !**let_in).count();
        if stuck > 0 {
            let seconds = TURN.as_secs();
            self.findings.broken =
                Some(format!("{stuck} locks of silent holders did not pass on within {seconds} s"));
        }
    }

    /// Starts a client process for the lock of this number.
    pub(crate) fn client(
        &self,
        name: &str,
        url: &str,
        number: usize,
        ttl: Duration,
    ) -> Result<Actor, LabError> {
        let part = Part {
            name: name.to_owned(),
            url: url.to_owned(),
            lock: format!("{}-{number}", self.lock),
            ttl: self.ttl(ttl),
        };
        Actor::start(self.yard.binary(), &part, &self.resource.address.to_string(), &self.record)
    }

    /// Pairs of a holder and a rival, each with a lock of its own. The rivals reach the servers at their own addresses,
    /// whatever happens to the holders' wires.
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

/// All holders take their locks and read.
pub(crate) fn take_and_read(pairs: &mut [Pair]) -> Result<(), LabError> {
    for pair in pairs.iter_mut() {
        pair.holder.acquires(TURN)?;
        pair.holder.does(&Step::Read)?;
    }
    Ok(())
}

/// All rivals ask for the locks of the holders.
pub(crate) fn ask(pairs: &mut [Pair]) -> Result<(), LabError> {
    for pair in pairs.iter_mut() {
        pair.rival.tell(&Step::Acquire { wait_ms: TURN.as_millis() as u64 })?;
    }
    Ok(())
}

/// One who was let in reads and writes.
pub(crate) fn read_and_write(actor: &mut Actor) -> Result<(), LabError> {
    actor.does(&Step::Read)?;
    actor.does(&Step::Write).map(drop)
}

/// Each rival is let in now, or not: those who are do their work. Says for each whether it was.
pub(crate) fn rivals_work(pairs: &mut [Pair], patience: Duration) -> Result<Vec<bool>, LabError> {
    let until = std::time::Instant::now() + patience;
    let mut let_in = Vec::new();
    for pair in pairs.iter_mut() {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let granted = matches!(pair.rival.answer_within(left)?, Some(What::Granted { .. }));
        if granted {
            read_and_write(&mut pair.rival)?;
        }
        let_in.push(granted);
    }
    Ok(let_in)
}

/// The holders write what follows from what they had read; then both give back, and rivals who waited do their work.
pub(crate) fn holders_write(pairs: &mut [Pair], let_in: &[bool]) -> Result<(), LabError> {
    for (pair, was_let_in) in pairs.iter_mut().zip(let_in) {
        pair.holder.does(&Step::Write)?;
        pair.holder.does(&Step::Release)?;
        if !was_let_in && matches!(pair.rival.answer()?, What::Granted { .. }) {
            read_and_write(&mut pair.rival)?;
        }
        pair.rival.does(&Step::Release)?;
    }
    Ok(())
}

/// How long to wait for somebody who comes in when a lease is over.
pub(crate) fn turn() -> Duration {
    TURN
}
