//! A holder that releases after its lease: whose lock does it end?

use std::time::Duration;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::event::What;
use crate::lab::stage::{Stage, turn};
use crate::lab::yard::Shape;

const TTL: Duration = Duration::from_secs(1);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let url = stage.servers(Shape::Single)?.url();
    let mut a = stage.client("A", &url, 1, TTL)?;
    // Long enough that its lease does not end while this is played.
    let mut b = stage.client("B", &url, 1, 20 * TTL)?;
    let mut c = stage.client("C", &url, 1, 20 * TTL)?;
    a.acquires(turn())?;
    a.stop()?;
    b.acquires(turn())?;
    b.does(&Step::Read)?;
    a.tell(&Step::Release)?;
    a.go_on()?;
    let said = a.answer()?;
    let let_in = matches!(c.does(&Step::Acquire { wait_ms: 1_000 })?, What::Granted { .. });
    if let_in {
        c.does(&Step::Read)?;
        c.does(&Step::Write)?;
    }
    b.does(&Step::Write)?;
    if let_in {
        c.does(&Step::Release)?;
    }
    b.does(&Step::Release)?;
    let was_accepted = matches!(said, What::Released { .. });
    stage.findings.note(if was_accepted {
        "A's late release was accepted"
    } else {
        "A's late release was refused"
    });
    stage.findings.note(if let_in { "C was let in while B held" } else { "C was not let in while B held" });
    Ok(())
}
