//! The server is killed and started again. Redis keeps nothing on disk, as it does by default in many places.

use std::time::Duration;

use crate::lab::engine::EngineName;
use crate::lab::error::LabError;
use crate::lab::stage::{Stage, ask, holders_write, rivals_work, take_and_read};
use crate::lab::yard::Shape;

const PAIRS: usize = 3;
/// Longer than a restart takes, so that a holder whose lock is remembered keeps it.
const TTL: Duration = Duration::from_secs(30);
/// How long a rival may take to be let in by a server that has forgotten the holder.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let shape = match stage.engine {
        EngineName::Redis | EngineName::Redlock | EngineName::Naive => Shape::Volatile,
        _ => Shape::Single,
    };
    let url = stage.servers(shape)?.url();
    let mut pairs = stage.pairs(PAIRS, (&url, &url), TTL)?;
    take_and_read(&mut pairs)?;
    stage.record.fault_begins("server killed", None);
    stage.servers(shape)?.kill();
    stage.say("the server is killed; starting it again");
    stage.servers(shape)?.restart()?;
    stage.record.fault_ends("server started again", None);
    ask(&mut pairs)?;
    let let_in = rivals_work(&mut pairs, PATIENCE)?;
    holders_write(&mut pairs, &let_in)?;
    let count = let_in.iter().filter(|let_in| **let_in).count();
    stage.findings.figure("rival let in early", count as f64, &format!("of {PAIRS}"));
    Ok(())
}
