//! A thousand waiters: what a release costs the server.

use std::time::Duration;

use crate::lab::client::{Crowd, Step};
use crate::lab::error::LabError;
use crate::lab::event::What;
use crate::lab::stage::{Stage, turn};
use crate::lab::yard::Shape;

const KEEPERS: usize = 20;
const TASKS_EACH: usize = 50;
const RELEASES: u64 = 100;
const HOLD_MS: u64 = 20;
/// No engine is given longer.
const LIMIT: Duration = Duration::from_secs(45);
/// Long enough that renewals and expiries play no part.
const TTL: Duration = Duration::from_secs(60);
/// Between two looks at the server's own counters.
const LOOK: Duration = Duration::from_secs(1);
/// No queue takes longer to form.
const LOOKS_MAX: usize = 12;

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let url = stage.servers(Shape::Single)?.url();
    let mut holder = stage.client("A", &url, 1, TTL)?;
    let mut crowd = stage.client("crowd", &url, 1, TTL)?;
    holder.acquires(turn())?;
    crowd.tell(&Step::Crowd(Crowd {
        keepers: KEEPERS,
        tasks_each: TASKS_EACH,
        locks: 1,
        hold_ms: HOLD_MS,
        grants_max: RELEASES,
        for_ms: LIMIT.as_millis() as u64,
    }))?;
    crowd.until_it_asks()?;
    stage.say("a thousand wait");
    until_steady(stage)?;
    let before = stage.servers(Shape::Single)?.requests();
    let began = std::time::Instant::now();
    holder.does(&Step::Release)?;
    let What::Worked { rounds, .. } = crowd.answer()? else {
        return Err(LabError::NotApplicable("the crowd did not do its work: run it again"));
    };
    let took = began.elapsed();
    // Counters of PostgreSQL lag behind.
    std::thread::sleep(LOOK);
    let after = stage.servers(Shape::Single)?.requests();
    stage.findings.figure(
        "releases",
        rounds as f64,
        &format!("in {} ms, held for {HOLD_MS} ms each", took.as_millis()),
    );
    if let (Some((before, what)), Some((after, _))) = (before, after)
        && rounds > 0
    {
        let each = after.saturating_sub(before) as f64 / rounds as f64;
        stage.findings.figure("for each release", (each * 10.0).round() / 10.0, what);
    }
    Ok(())
}

/// Waits until the server has as much to do in one second as in the next: all requests stand in their queues.
fn until_steady(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let mut last: Option<u64> = None;
    let mut grown: Option<u64> = None;
    for _ in 0..LOOKS_MAX {
        std::thread::sleep(LOOK);
        let now = stage.servers(Shape::Single)?.requests().map_or(0, |(count, _)| count);
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
