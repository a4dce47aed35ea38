//! The lab: real servers, real client processes, real faults, and an exact count of what was lost.
//!
//! ```text
//! yard        the servers that run; kept from one scenario to the next
//! stage       what one run is played with: servers, clients, the resource
//! scenarios/  one file each: who does what, and which fault is made
//! client/     the client process: does what it is told, says what happens to it
//! actor       a client process, seen from the lab
//! resource    what the lock protects, with a gate or without; counts what was lost
//! record      everything that happened; outcome judges it with the checkers
//! report/     text, JSON, HTML with drawn timelines, the matrix of docs/lab.md
//! ```

mod actor;
mod client;
mod clock;
mod engine;
mod error;
mod event;
mod outcome;
mod random;
mod record;
pub mod report;
mod resource;
mod scenario;
mod scenarios;
mod stage;
mod yard;

use std::path::PathBuf;

pub use self::client::{ClientOptions, play};
pub use self::engine::EngineName;
pub use self::error::LabError;
pub use self::event::{Event, Phase, What};
pub use self::outcome::{Case, Cell, Figure, Mode, Outcome};
pub use self::scenario::Scenario;

use self::stage::Stage;
use self::yard::Yard;

/// Runs scenarios, one after the other.
pub struct Lab {
    yard: Yard,
    seed: u64,
    count: u64,
}

impl Lab {
    /// A lab that starts its nodes and clients with this binary.
    pub fn new(binary: PathBuf, seed: u64) -> Lab {
        Lab { yard: Yard::new(binary), seed, count: 0 }
    }

    /// Plays one case; `progress` hears how far it is.
    pub fn run(&mut self, case: Case, progress: &dyn Fn(&str)) -> Cell {
        let why = case.scenario.why_not(case.engine);
        let why = why.or_else(|| case.engine.why_not_fenced().filter(|_| case.mode == Mode::Fenced));
        if let Some(why) = why {
            return Cell::NotApplicable { case, why: why.to_owned() };
        }
        match self.play(case, progress) {
            Ok(outcome) => Cell::Ran(Box::new(outcome)),
            Err(error) => {
                // Whatever state its servers are in, the next run begins with new ones.
                self.yard.end_all(case.engine);
                Cell::NotRun { case, missing: error.is_missing(), why: error.to_string() }
            }
        }
    }

    fn play(&mut self, case: Case, progress: &dyn Fn(&str)) -> Result<Outcome, LabError> {
        self.count += 1;
        // No two runs share a name: what one leaves behind must not touch the next.
        let lock = format!("{}-{}-{}", case.scenario, case.mode.name(), self.count);
        let mut stage = Stage::new((case.engine, case.mode, self.seed), lock, &mut self.yard, progress)?;
        scenarios::play(case.scenario, &mut stage)?;
        let (tally, timeline) = (stage.resource.tally(), stage.record.events());
        Ok(outcome::judge(case, self.seed, stage.findings, tally, timeline))
    }

    /// Ends the servers of an engine that is not needed any more.
    pub fn end(&mut self, engine: EngineName) {
        self.yard.end_all(engine);
    }
}

/// All cases of some scenarios and engines, engine by engine, so that few servers run at a time.
pub fn cases(scenarios: &[Scenario], engines: &[EngineName]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &engine in engines {
        for &scenario in scenarios {
            let modes: &[Mode] =
                if scenario.has_gate() { &[Mode::Fenced, Mode::Unfenced] } else { &[Mode::Either] };
            cases.extend(modes.iter().map(|&mode| Case { scenario, engine, mode }));
        }
    }
    cases
}

/// The versions of everything that is installed.
pub fn versions() -> Vec<String> {
    yard::versions()
}
