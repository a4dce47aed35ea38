//! What is measured without any fault: the price of holding long, and of one lock for everything.

use std::time::Duration;

use crate::lab::client::{Crowd, Step};
use crate::lab::error::LabError;
use crate::lab::event::What;
use crate::lab::stage::Stage;
use crate::lab::yard::Shape;

const CLIENTS: usize = 8;
const TTL: Duration = Duration::from_secs(30);
const EACH: Duration = Duration::from_millis(1500);

/// Rounds a second of a crowd of eight. Each crowd has a lock of its own: the one before was ended while it held.
fn measure(stage: &mut Stage<'_>, name: &str, locks: usize, hold_ms: u64) -> Result<f64, LabError> {
    let url = stage.servers(Shape::Single)?.url();
    stage.crowds += 1;
    let mut crowd = stage.client(name, &url, stage.crowds, TTL)?;
    let order = Crowd {
        keepers: CLIENTS,
        tasks_each: 1,
        locks,
        hold_ms,
        grants_max: u64::MAX,
        for_ms: EACH.as_millis() as u64,
    };
    match crowd.does(&Step::Crowd(order))? {
        What::Worked { rounds, took_ns } => Ok((rounds as f64 * 1e9 / took_ns.max(1) as f64).round()),
        _ => Err(LabError::NotApplicable("the crowd did not do its work: run it again")),
    }
}

pub(super) fn long_hold(stage: &mut Stage<'_>) -> Result<(), LabError> {
    for hold_ms in [0, 1, 10, 100] {
        stage.say(&format!("held for {hold_ms} ms"));
        let rate = measure(stage, &format!("hold-{hold_ms}"), 1, hold_ms)?;
        stage.findings.figure(format!("held for {hold_ms} ms"), rate, "grants/s");
    }
    stage.findings.note("one lock that is held for t cannot be granted more than 1/t times a second");
    Ok(())
}

pub(super) fn granularity(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let global = measure(stage, "global", 1, 5)?;
    let each = measure(stage, "per-key", CLIENTS, 5)?;
    stage.findings.figure("one lock for all", global, "grants/s");
    stage.findings.figure("one for each key", each, "grants/s");
    stage.findings.figure("times as many", (each / global.max(1.0) * 10.0).round() / 10.0, "x");
    Ok(())
}
