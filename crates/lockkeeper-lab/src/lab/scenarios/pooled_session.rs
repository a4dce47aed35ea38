//! PgBouncer in transaction mode: whose session is it?

use std::time::Duration;

use lockkeeper_testkit::pgbouncer::PgBouncer;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::event::What;
use crate::lab::outcome::Mode;
use crate::lab::stage::{Stage, read_and_write, turn};
use crate::lab::yard::{Servers, Shape};

const TTL: Duration = Duration::from_secs(5);

pub(super) fn play(stage: &mut Stage<'_>) -> Result<(), LabError> {
    let is_control = stage.mode == Mode::Unfenced;
    let Servers::Postgres(postgres) = stage.servers(Shape::Single)? else {
        return Err(LabError::NotApplicable("there is no pooler between client and server"));
    };
    // One connection to the server: the next who asks gets the same session for sure, not only by chance.
    if is_control {
        let pooler = PgBouncer::start(postgres, "transaction", 1)?;
        return naive(stage, &format!("advisory://{}", pooler.address));
    }
    let pooler = PgBouncer::start(postgres, "transaction", 10)?;
    ours(stage, &format!("postgres://postgres@{}/postgres", pooler.address))
}

/// Both get the lock: for the server they are one session, and the lock is re-entrant.
fn naive(stage: &mut Stage<'_>, url: &str) -> Result<(), LabError> {
    let mut a = stage.client("A", url, 1, TTL)?;
    let mut b = stage.client("B", url, 1, TTL)?;
    a.acquires(turn())?;
    a.does(&Step::Read)?;
    let let_in = matches!(b.does(&Step::Acquire { wait_ms: 0 })?, What::Granted { .. });
    stage.findings.note(if let_in {
        "the pooler ran A and B on one session of the server: both hold the lock"
    } else {
        "B was not let in"
    });
    if let_in {
        read_and_write(&mut b)?;
    }
    a.does(&Step::Write)?;
    b.does(&Step::Release)?;
    a.does(&Step::Release)?;
    Ok(())
}

/// Ours refuses sessions behind such a pooler, and works at transaction level.
fn ours(stage: &mut Stage<'_>, url: &str) -> Result<(), LabError> {
    match stage.client("session", url, 1, TTL) {
        Ok(_) => {
            return Err(LabError::NotApplicable(
                "the pooler was not found out: this is a mistake, please report it",
            ));
        }
        Err(error) => stage.findings.note(format!("session level: refused. {error}")),
    }
    let url = format!("{url}?level=transaction");
    let mut a = stage.client("A", &url, 1, TTL)?;
    let mut b = stage.client("B", &url, 1, TTL)?;
    a.acquires(turn())?;
    a.does(&Step::Read)?;
    let let_in = matches!(b.does(&Step::Acquire { wait_ms: 500 })?, What::Granted { .. });
    if let_in {
        read_and_write(&mut b)?;
    }
    a.does(&Step::Write)?;
    a.does(&Step::Release)?;
    stage.findings.note(if let_in {
        "transaction level: B was let in"
    } else {
        "transaction level: B had to wait"
    });
    Ok(())
}
