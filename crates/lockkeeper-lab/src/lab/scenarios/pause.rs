//! Holders are paused for longer than their lease, and write when they are resumed.

use std::time::Duration;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::scenario_run::{LEASE_END_MAX, ScenarioRun, acquire_and_read, request_all, run_rivals};
use crate::lab::server_pool::Topology;

const PAIRS: usize = 3;
const TTL: Duration = Duration::from_secs(1);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let url = run.servers(Topology::Single)?.url();
    let mut pairs = run.pairs(PAIRS, (&url, &url), TTL)?;
    acquire_and_read(&mut pairs)?;
    for pair in &mut pairs {
        pair.holder.pause()?;
    }
    run.report_progress("the holders are paused; waiting for their leases to end");
    request_all(&mut pairs)?;
    // Only the end of the holders' leases ends this wait.
    let granted = run_rivals(&mut pairs, LEASE_END_MAX)?;
    run.check_handover(&granted);
    for pair in &mut pairs {
        // Sent before it is resumed, so that the write is its first action.
        pair.holder.send(&Step::Write)?;
        pair.holder.resume()?;
        pair.holder.answer()?;
        pair.holder.perform(&Step::Release)?;
        pair.rival.perform(&Step::Release)?;
    }
    Ok(())
}
