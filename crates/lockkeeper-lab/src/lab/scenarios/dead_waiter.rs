//! A waiter is killed in the queue: how long does it delay the waiters behind it?

use std::time::Duration;

use crate::lab::client::Step;
use crate::lab::clock::now_ns;
use crate::lab::error::LabError;
use crate::lab::event::EventKind;
use crate::lab::scenario_run::{LEASE_END_MAX, ScenarioRun};
use crate::lab::server_pool::Topology;

const TTL: Duration = Duration::from_secs(2);
/// Time for a request to reach the server's queue, which not every engine shows.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let url = run.servers(Topology::Single)?.url();
    let mut a = run.client("A", &url, 1, TTL)?;
    let mut b = run.client("B", &url, 1, TTL)?;
    let mut c = run.client("C", &url, 1, TTL)?;
    a.acquire(LEASE_END_MAX)?;
    for waiter in [&mut b, &mut c] {
        waiter.send(&Step::Acquire { wait_ms: LEASE_END_MAX.as_millis() as u64 })?;
        waiter.wait_until_requested()?;
        std::thread::sleep(SETTLE);
    }
    b.kill();
    let released = now_ns();
    a.perform(&Step::Release)?;
    let granted = c.answer()?;
    let delay_ms = (now_ns() - released) as f64 / 1e6;
    if !matches!(granted, EventKind::Granted { .. }) {
        run.findings.note(format!("C was never granted the lock: {}", granted.describe()));
    }
    run.findings.figure("C granted after", delay_ms.round(), "ms");
    let ttl = run.ttl(TTL).as_millis();
    run.findings.note(format!("the TTL of the dead waiter was {ttl} ms"));
    c.perform(&Step::Release)?;
    Ok(())
}
