//! The server is killed and restarted. Redis persists nothing, as in many installations.

use std::time::Duration;

use crate::lab::engine::EngineName;
use crate::lab::error::LabError;
use crate::lab::scenario_run::{ScenarioRun, acquire_and_read, request_all, resume_holders, run_rivals};
use crate::lab::server_pool::Topology;

const PAIRS: usize = 3;
/// Longer than a restart, so that a holder whose lock survives keeps it.
const TTL: Duration = Duration::from_secs(30);
/// Time limit for the grant of a rival by a server that has forgotten the holder.
const EARLY_GRANT_WITHIN: Duration = Duration::from_secs(2);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let topology = match run.engine {
        EngineName::REDIS | EngineName::REDLOCK | EngineName::NAIVE => Topology::Volatile,
        _ => Topology::Single,
    };
    let url = run.servers(topology)?.url();
    let mut pairs = run.pairs(PAIRS, (&url, &url), TTL)?;
    acquire_and_read(&mut pairs)?;
    run.events.fault_begins("server killed", None);
    run.servers(topology)?.kill();
    run.report_progress("the server is killed and restarted");
    run.servers(topology)?.restart()?;
    run.events.fault_ends("server restarted", None);
    request_all(&mut pairs)?;
    let granted = run_rivals(&mut pairs, EARLY_GRANT_WITHIN)?;
    resume_holders(&mut pairs, &granted)?;
    let count = granted.iter().filter(|granted| **granted).count();
    run.findings.figure("rival granted early", count as f64, &format!("of {PAIRS}"));
    Ok(())
}
