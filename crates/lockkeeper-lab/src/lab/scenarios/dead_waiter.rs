//! A waiter that is killed in the queue: how long does it hold up those behind it?

use std::time::Duration;

use crate::lab::client::Step;
use crate::lab::clock::now_ns;
use crate::lab::error::LabError;
use crate::lab::event::What;
use crate::lab::stage::{Stage, turn};
use crate::lab::yard::Shape;

const TTL: Duration = Duration::from_secs(2);
/// Until a request stands in the server's queue; it cannot be seen from outside on every engine.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let url = stage.servers(Shape::Single)?.url();
    let mut a = stage.client("A", &url, 1, TTL)?;
    let mut b = stage.client("B", &url, 1, TTL)?;
    let mut c = stage.client("C", &url, 1, TTL)?;
    a.acquires(turn())?;
    for waiter in [&mut b, &mut c] {
        waiter.tell(&Step::Acquire { wait_ms: turn().as_millis() as u64 })?;
        waiter.until_it_asks()?;
        std::thread::sleep(SETTLE);
    }
    b.kill();
    let released = now_ns();
    a.does(&Step::Release)?;
    let granted = c.answer()?;
    let delay_ms = (now_ns() - released) as f64 / 1e6;
    if !matches!(granted, What::Granted { .. }) {
        stage.findings.note(format!("C was never let in: {}", granted.words()));
    }
    stage.findings.figure("C let in after", delay_ms.round(), "ms");
    let ttl = stage.ttl(TTL).as_millis();
    stage.findings.note(format!("the time to live of the dead one was {ttl} ms"));
    c.does(&Step::Release)?;
    Ok(())
}
