//! Holders that are stopped for longer than their lease, and write when they go on.

use std::time::Duration;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::stage::{Stage, ask, rivals_work, take_and_read, turn};
use crate::lab::yard::Shape;

const PAIRS: usize = 3;
const TTL: Duration = Duration::from_secs(1);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let url = stage.servers(Shape::Single)?.url();
    let mut pairs = stage.pairs(PAIRS, (&url, &url), TTL)?;
    take_and_read(&mut pairs)?;
    for pair in &mut pairs {
        pair.holder.stop()?;
    }
    stage.say("the holders are stopped; waiting for their leases to end");
    ask(&mut pairs)?;
    // Nothing ends this wait but the end of the holders' leases.
    let let_in = rivals_work(&mut pairs, turn())?;
    stage.must_pass_on(&let_in);
    for pair in &mut pairs {
        // Written into its pipe before it goes on: its write is the first thing that it does.
        pair.holder.tell(&Step::Write)?;
        pair.holder.go_on()?;
        pair.holder.answer()?;
        pair.holder.does(&Step::Release)?;
        pair.rival.does(&Step::Release)?;
    }
    Ok(())
}
