//! A holder releases after its lease: whose lock does it end?

use std::time::Duration;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::event::EventKind;
use crate::lab::scenario_run::{LEASE_END_MAX, ScenarioRun};
use crate::lab::server_pool::Topology;

const TTL: Duration = Duration::from_secs(1);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let url = run.servers(Topology::Single)?.url();
    let mut a = run.client("A", &url, 1, TTL)?;
    // Long enough that the lease does not end during the scenario.
    let mut b = run.client("B", &url, 1, 20 * TTL)?;
    let mut c = run.client("C", &url, 1, 20 * TTL)?;
    a.acquire(LEASE_END_MAX)?;
    a.pause()?;
    b.acquire(LEASE_END_MAX)?;
    b.perform(&Step::Read)?;
    a.send(&Step::Release)?;
    a.resume()?;
    let answer = a.answer()?;
    let granted = matches!(c.perform(&Step::Acquire { wait_ms: 1_000 })?, EventKind::Granted { .. });
    if granted {
        c.perform(&Step::Read)?;
        c.perform(&Step::Write)?;
    }
    b.perform(&Step::Write)?;
    if granted {
        c.perform(&Step::Release)?;
    }
    b.perform(&Step::Release)?;
    let was_accepted = matches!(answer, EventKind::Released { .. });
    run.findings.note(if was_accepted {
        "A's late release was accepted"
    } else {
        "A's late release was refused"
    });
    run.findings.note(if granted {
        "C was granted the lock while B held it"
    } else {
        "C was not granted the lock while B held it"
    });
    Ok(())
}
