//! The clock of one Redlock instance is set forward: two quorums.

use std::time::Duration;

use lockkeeper_testkit::wire::Wire;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::stage::{Stage, read_and_write};
use crate::lab::yard::{MOVED, Servers, Shape};

/// A third of it passes between renewals: everything happens before A finds out.
const TTL: Duration = Duration::from_secs(30);
const JUMP: Duration = Duration::from_secs(3600);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let servers = stage.servers(Shape::MovedClock)?;
    let addresses = servers.addresses();
    let wires: Vec<Wire> = addresses.iter().map(|address| Wire::to(*address)).collect::<Result<_, _>>()?;
    let through: Vec<_> = wires.iter().map(|wire| wire.address).collect();
    let (far, near) = (servers.url_at(&through), servers.url());
    let mut a = stage.client("A", &far, 1, TTL)?;
    let mut b = stage.client("B", &near, 1, TTL)?;
    for wire in &wires[MOVED + 1..] {
        wire.cut();
    }
    stage.record.fault_begins("A is cut off from instances 4 and 5", None);
    a.acquires(Duration::from_secs(30))?;
    a.does(&Step::Read)?;
    let Servers::Redlock(instances) = stage.servers(Shape::MovedClock)? else {
        return Err(LabError::NotApplicable("there is one server only"));
    };
    instances[MOVED].move_clock(JUMP)?;
    stage.record.fault_once("the clock of instance 3 jumps by an hour");
    b.acquires(Duration::from_secs(5))?;
    read_and_write(&mut b)?;
    a.does(&Step::Write)?;
    b.does(&Step::Release)?;
    a.does(&Step::Release)?;
    stage.record.fault_ends("healed", None);
    wires.iter().for_each(Wire::heal);
    // Its clock is an hour ahead for good: nobody else should have it.
    let engine = stage.engine;
    stage.yard.end(engine, Shape::MovedClock);
    Ok(())
}
