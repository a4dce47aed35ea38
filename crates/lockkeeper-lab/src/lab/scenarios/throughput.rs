//! Throughput without faults: the cost of long holds, and of one lock for everything.

use std::time::Duration;

use crate::lab::client::{ClientGroup, Step};
use crate::lab::error::LabError;
use crate::lab::event::EventKind;
use crate::lab::scenario_run::ScenarioRun;
use crate::lab::server_pool::Topology;

const CLIENTS: usize = 8;
const TTL: Duration = Duration::from_secs(30);
const EACH: Duration = Duration::from_millis(1500);

/// Grants per second of a group of eight. Each group has its own lock, because the previous group was killed while it held one.
fn measure(run: &mut ScenarioRun<'_>, name: &str, locks: usize, hold_ms: u64) -> Result<f64, LabError> {
    let url = run.servers(Topology::Single)?.url();
    run.groups += 1;
    let mut group = run.client(name, &url, run.groups, TTL)?;
    let settings = ClientGroup {
        keepers: CLIENTS,
        tasks_each: 1,
        locks,
        hold_ms,
        grants_max: u64::MAX,
        for_ms: EACH.as_millis() as u64,
    };
    match group.perform(&Step::ClientGroup(settings))? {
        EventKind::Worked { rounds, took_ns } => Ok((rounds as f64 * 1e9 / took_ns.max(1) as f64).round()),
        _ => Err(LabError::NotApplicable("the group did not finish: run it again")),
    }
}

pub(super) fn long_hold(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    for hold_ms in [0, 1, 10, 100] {
        run.report_progress(&format!("held for {hold_ms} ms"));
        let rate = measure(run, &format!("hold-{hold_ms}"), 1, hold_ms)?;
        run.findings.figure(format!("held for {hold_ms} ms"), rate, "grants/s");
    }
    run.findings.note("one lock that is held for t can be granted at most 1/t times per second");
    Ok(())
}

pub(super) fn granularity(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let global = measure(run, "global", 1, 5)?;
    let each = measure(run, "per-key", CLIENTS, 5)?;
    run.findings.figure("one lock for all", global, "grants/s");
    run.findings.figure("one for each key", each, "grants/s");
    run.findings.figure("times as many", (each / global.max(1.0) * 10.0).round() / 10.0, "x");
    Ok(())
}
