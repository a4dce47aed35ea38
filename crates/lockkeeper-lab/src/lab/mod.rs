//! The lab: real servers, real client processes, real faults, and an exact count of lost updates.
//!
//! ```text
//! server_pool     the servers that run; kept from one scenario to the next
//! scenario_run    one run of a scenario: its servers, clients and resource
//! scenarios/      one file each: the steps of the clients, and the faults
//! client/         the client process: runs the steps it is sent, reports events
//! client_process  a client process as the lab controls it
//! resource        what the lock protects, with a gate or without; counts lost updates
//! event_log       everything that happened; outcome evaluates it with the checkers
//! report/         text, JSON, HTML with drawn timelines, the matrix of docs/lab.md
//! ```

mod client;
mod client_process;
mod clock;
mod engine;
mod error;
mod event;
mod event_log;
mod outcome;
mod random;
pub mod report;
mod resource;
mod scenario;
mod scenario_run;
mod scenarios;
mod server_pool;

use std::path::PathBuf;

pub use self::client::{ClientOptions, run_client};
pub use self::engine::EngineName;
pub use self::error::LabError;
pub use self::event::{Event, EventKind, Phase};
pub use self::outcome::{Case, CaseResult, Figure, Mode, Outcome};
pub use self::scenario::Scenario;
use crate::lockkeeper_binary::LockkeeperBinary;

use self::scenario_run::ScenarioRun;
use self::server_pool::ServerPool;

/// Runs scenarios, one after the other.
pub struct Lab {
    pool: ServerPool,
    /// This program, which is also the client process.
    program: PathBuf,
    seed: u64,
    count: u64,
}

impl Lab {
    /// A lab that starts client processes with its own program, and nodes with the binary `lockkeeper`.
    pub fn new(program: PathBuf, binary: LockkeeperBinary, seed: u64) -> Lab {
        Lab { pool: ServerPool::new(binary), program, seed, count: 0 }
    }

    /// Runs one case. `progress` receives status messages.
    pub fn run(&mut self, case: Case, progress: &dyn Fn(&str)) -> CaseResult {
        let why = case.scenario.not_applicable_reason(case.engine);
        let why = why.or_else(|| case.engine.not_fenced_reason().filter(|_| case.mode == Mode::Fenced));
        if let Some(why) = why {
            return CaseResult::NotApplicable { case, why: why.to_owned() };
        }
        match self.run_case(case, progress) {
            Ok(outcome) => CaseResult::Ran(Box::new(outcome)),
            Err(error) => {
                // The state of its servers is unknown: the next run starts new ones.
                self.pool.end_all(case.engine);
                CaseResult::NotRun { case, missing: error.is_missing(), why: error.to_string() }
            }
        }
    }

    fn run_case(&mut self, case: Case, progress: &dyn Fn(&str)) -> Result<Outcome, LabError> {
        self.count += 1;
        // Every run has its own lock names, so that leftovers of one do not affect the next.
        let lock = format!("{}-{}-{}", case.scenario, case.mode.name(), self.count);
        let mut run = ScenarioRun::new(case, self.seed, lock, &self.program, &mut self.pool, progress)?;
        scenarios::run(case.scenario, &mut run)?;
        let (counts, timeline) = (run.resource.counts(), run.events.sorted());
        Ok(outcome::evaluate(case, self.seed, run.findings, counts, timeline))
    }

    /// Stops the servers of an engine.
    pub fn end(&mut self, engine: EngineName) {
        self.pool.end_all(engine);
    }
}

/// All cases of some scenarios and engines, grouped by engine, so that few servers run at a time.
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

/// Names and versions of all servers that are installed.
pub fn versions() -> Vec<String> {
    server_pool::versions()
}
