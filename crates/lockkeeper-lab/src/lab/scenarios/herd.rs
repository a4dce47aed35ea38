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
const LIMIT: Duration = Duration::from_secs(30);
/// Long enough that renewals and expiries play no part.
const TTL: Duration = Duration::from_secs(60);
/// Until all requests stand in their queues, and the server's own counters have caught up.
const SETTLE: Duration = Duration::from_secs(2);

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
        for_ms: (LIMIT + SETTLE).as_millis() as u64,
    }))?;
    crowd.until_it_asks()?;
    stage.say("a thousand wait");
    std::thread::sleep(SETTLE);
    let before = stage.servers(Shape::Single)?.requests();
    let began = std::time::Instant::now();
    holder.does(&Step::Release)?;
    let What::Worked { rounds, .. } = crowd.answer()? else {
        return Err(LabError::NotApplicable("the crowd did not do its work: run it again"));
    };
    let took = began.elapsed();
    // Counters of Consul and PostgreSQL lag behind.
    std::thread::sleep(SETTLE / 2);
    let after = stage.servers(Shape::Single)?.requests();
    stage.findings.figure("releases", rounds as f64, &format!("in {} ms, held for {HOLD_MS} ms each", took.as_millis()));
    if let (Some((before, what)), Some((after, _))) = (before, after)
        && rounds > 0
    {
        let each = after.saturating_sub(before) as f64 / rounds as f64;
        stage.findings.figure("for each release", (each * 10.0).round() / 10.0, what);
    }
    Ok(())
}
