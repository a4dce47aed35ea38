//! Holders that are cut off from the lock service, but not from the resource.

use std::time::Duration;

use lockkeeper_testkit::wire::Wire;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::stage::{Stage, ask, rivals_work, take_and_read, turn};
use crate::lab::yard::Shape;

const PAIRS: usize = 3;
const TTL: Duration = Duration::from_secs(1);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let servers = stage.servers(Shape::Single)?;
    let wires: Vec<Wire> = servers.addresses().into_iter().map(Wire::to).collect::<Result<_, _>>()?;
    let through: Vec<_> = wires.iter().map(|wire| wire.address).collect();
    let (far, near) = (servers.url_at(&through), servers.url());
    let mut pairs = stage.pairs(PAIRS, (&far, &near), TTL)?;
    take_and_read(&mut pairs)?;
    wires.iter().for_each(Wire::cut);
    stage.record.fault_begins("holders cut off from the lock service", None);
    stage.say("the holders are cut off; waiting for their leases to end");
    ask(&mut pairs)?;
    let let_in = rivals_work(&mut pairs, turn())?;
    stage.must_pass_on(&let_in);
    for pair in &mut pairs {
        pair.holder.does(&Step::Write)?;
        pair.rival.does(&Step::Release)?;
    }
    wires.iter().for_each(Wire::heal);
    stage.record.fault_ends("healed", None);
    Ok(())
}
