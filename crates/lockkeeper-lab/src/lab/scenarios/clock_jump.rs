//! The clock of one Redlock instance is set forward: two quorums.

use std::time::Duration;

use lockkeeper_testkit::redis::Redis;
use lockkeeper_testkit::wire::Wire;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::scenario_run::{ScenarioRun, read_and_write};
use crate::lab::server_pool::{MOVED, Topology};

/// A renews after a third of it, so the scenario ends before A notices.
const TTL: Duration = Duration::from_secs(30);
const JUMP: Duration = Duration::from_secs(3600);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let servers = run.servers(Topology::MovedClock)?;
    let addresses = servers.addresses();
    let wires: Vec<Wire> = addresses.iter().map(|address| Wire::to(*address)).collect::<Result<_, _>>()?;
    let through: Vec<_> = wires.iter().map(|wire| wire.address).collect();
    let (far, near) = (servers.url_at(&through), servers.url());
    let mut a = run.client("A", &far, 1, TTL)?;
    let mut b = run.client("B", &near, 1, TTL)?;
    for wire in &wires[MOVED + 1..] {
        wire.cut();
    }
    run.events.fault_begins("A is cut off from instances 4 and 5", None);
    a.acquire(Duration::from_secs(30))?;
    a.perform(&Step::Read)?;
    let Some(instances) = run.servers(Topology::MovedClock)?.downcast::<Vec<Redis>>() else {
        return Err(LabError::NotApplicable("there is one server only"));
    };
    instances[MOVED].move_clock(JUMP)?;
    run.events.fault_once("the clock of instance 3 jumps by an hour");
    b.acquire(Duration::from_secs(5))?;
    read_and_write(&mut b)?;
    a.perform(&Step::Write)?;
    b.perform(&Step::Release)?;
    a.perform(&Step::Release)?;
    run.events.fault_ends("healed", None);
    wires.iter().for_each(Wire::heal);
    // The clock stays an hour ahead, so no other run may use these servers.
    let engine = run.engine;
    run.pool.end(engine, Topology::MovedClock);
    Ok(())
}
