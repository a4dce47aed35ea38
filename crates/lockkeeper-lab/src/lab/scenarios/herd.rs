//! A thousand waiters: the cost of a release to the server.

use std::time::Duration;

use crate::lab::client::{ClientGroup, Step};
use crate::lab::error::LabError;
use crate::lab::event::EventKind;
use crate::lab::scenario_run::{LEASE_END_MAX, ScenarioRun};
use crate::lab::server_pool::Topology;

const KEEPERS: usize = 20;
const TASKS_EACH: usize = 50;
const RELEASES: u64 = 100;
const HOLD_MS: u64 = 20;
/// Time limit for every engine.
const LIMIT: Duration = Duration::from_secs(45);
/// Long enough that no lease is renewed or expires.
const TTL: Duration = Duration::from_secs(60);
/// Interval between two reads of the server's counters.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Limit on the reads until the queue has formed.
const READS_MAX: usize = 12;

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let url = run.servers(Topology::Single)?.url();
    let mut holder = run.client("A", &url, 1, TTL)?;
    let mut group = run.client("crowd", &url, 1, TTL)?;
    holder.acquire(LEASE_END_MAX)?;
    group.send(&Step::ClientGroup(ClientGroup {
        keepers: KEEPERS,
        tasks_each: TASKS_EACH,
        locks: 1,
        hold_ms: HOLD_MS,
        grants_max: RELEASES,
        for_ms: LIMIT.as_millis() as u64,
    }))?;
    group.wait_until_requested()?;
    run.report_progress("a thousand clients wait");
    until_steady(run)?;
    let before = run.servers(Topology::Single)?.requests();
    let began = std::time::Instant::now();
    holder.perform(&Step::Release)?;
    let EventKind::Worked { rounds, .. } = group.answer()? else {
        return Err(LabError::NotApplicable("the group did not finish: run it again"));
    };
    let took = began.elapsed();
    // The counters of PostgreSQL lag behind.
    std::thread::sleep(READ_EVERY);
    let after = run.servers(Topology::Single)?.requests();
    run.findings.figure(
        "releases",
        rounds as f64,
        &format!("in {} ms, held for {HOLD_MS} ms each", took.as_millis()),
    );
    if let (Some(before), Some(after)) = (before, after)
        && rounds > 0
    {
        let each = after.saturating_sub(before) as f64 / rounds as f64;
        let unit = run.servers(Topology::Single)?.request_unit();
        run.findings.figure("for each release", (each * 10.0).round() / 10.0, unit);
    }
    Ok(())
}

/// Waits until the server processes as many requests in one second as in the next: all waiters are queued then.
fn until_steady(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let mut last: Option<u64> = None;
    let mut grown: Option<u64> = None;
    for _ in 0..READS_MAX {
        std::thread::sleep(READ_EVERY);
        let now = run.servers(Topology::Single)?.requests().unwrap_or(0);
        let more = last.map(|last| now.saturating_sub(last));
        if let (Some(before), Some(more)) = (grown, more)
            && before.abs_diff(more) <= 20 + before.max(more) / 10
        {
            return Ok(());
        }
        (last, grown) = (Some(now), more);
    }
    Ok(())
}
