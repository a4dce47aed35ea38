//! Holders that are cut off from the lock service, but not from the resource.

use std::time::Duration;

use lockkeeper_testkit::wire::Wire;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::scenario_run::{LEASE_END_MAX, ScenarioRun, acquire_and_read, request_all, run_rivals};
use crate::lab::server_pool::Topology;

const PAIRS: usize = 3;
const TTL: Duration = Duration::from_secs(1);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let servers = run.servers(Topology::Single)?;
    let wires: Vec<Wire> = servers.addresses().into_iter().map(Wire::to).collect::<Result<_, _>>()?;
    let through: Vec<_> = wires.iter().map(|wire| wire.address).collect();
    let (far, near) = (servers.url_at(&through), servers.url());
    let mut pairs = run.pairs(PAIRS, (&far, &near), TTL)?;
    acquire_and_read(&mut pairs)?;
    wires.iter().for_each(Wire::cut);
    run.events.fault_begins("holders cut off from the lock service", None);
    run.report_progress("the holders are cut off; waiting for their leases to end");
    request_all(&mut pairs)?;
    let granted = run_rivals(&mut pairs, LEASE_END_MAX)?;
    run.check_handover(&granted);
    for pair in &mut pairs {
        pair.holder.perform(&Step::Write)?;
        pair.rival.perform(&Step::Release)?;
    }
    wires.iter().for_each(Wire::heal);
    run.events.fault_ends("healed", None);
    Ok(())
}
