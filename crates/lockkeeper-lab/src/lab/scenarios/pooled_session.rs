//! PgBouncer in transaction mode: clients share sessions of the server.

use std::time::Duration;

use lockkeeper_testkit::pgbouncer::PgBouncer;
use lockkeeper_testkit::postgres::Postgres;

use crate::lab::client::Step;
use crate::lab::error::LabError;
use crate::lab::event::EventKind;
use crate::lab::outcome::Mode;
use crate::lab::scenario_run::{LEASE_END_MAX, ScenarioRun, read_and_write};
use crate::lab::server_pool::Topology;

const TTL: Duration = Duration::from_secs(5);

pub(super) fn run(run: &mut ScenarioRun<'_>) -> Result<(), LabError> {
    let is_control = run.mode == Mode::Unfenced;
    let servers = run.servers(Topology::Single)?;
    let Some(postgres) = servers.downcast::<Postgres>() else {
        return Err(LabError::NotApplicable("there is no pooler between client and server"));
    };
    // One connection to the server: so the next client certainly gets the same session.
    if is_control {
        let pooler = PgBouncer::start(postgres, "transaction", 1)?;
        return naive(run, &format!("advisory://{}", pooler.address));
    }
    let pooler = PgBouncer::start(postgres, "transaction", 10)?;
    let url = servers.url_at(&[pooler.address]);
    ours(run, &url)
}

/// The control: both get the lock, because they share one session of the server and the lock is re-entrant.
fn naive(run: &mut ScenarioRun<'_>, url: &str) -> Result<(), LabError> {
    let mut a = run.client("A", url, 1, TTL)?;
    let mut b = run.client("B", url, 1, TTL)?;
    a.acquire(LEASE_END_MAX)?;
    a.perform(&Step::Read)?;
    let granted = matches!(b.perform(&Step::Acquire { wait_ms: 0 })?, EventKind::Granted { .. });
    run.findings.note(if granted {
        "the pooler ran A and B on one session of the server: both hold the lock"
    } else {
        "B was not granted the lock"
    });
    if granted {
        read_and_write(&mut b)?;
    }
    a.perform(&Step::Write)?;
    b.perform(&Step::Release)?;
    a.perform(&Step::Release)?;
    Ok(())
}

/// Our engine refuses session-level locks behind such a pooler, and works at transaction level.
fn ours(run: &mut ScenarioRun<'_>, url: &str) -> Result<(), LabError> {
    match run.client("session", url, 1, TTL) {
        Ok(_) => {
            return Err(LabError::NotApplicable(
                "the pooler was not detected: this is a bug, please report it",
            ));
        }
        Err(error) => run.findings.note(format!("session level: refused. {error}")),
    }
    let url = format!("{url}?level=transaction");
    let mut a = run.client("A", &url, 1, TTL)?;
    let mut b = run.client("B", &url, 1, TTL)?;
    a.acquire(LEASE_END_MAX)?;
    a.perform(&Step::Read)?;
    let granted = matches!(b.perform(&Step::Acquire { wait_ms: 500 })?, EventKind::Granted { .. });
    if granted {
        read_and_write(&mut b)?;
    }
    a.perform(&Step::Write)?;
    a.perform(&Step::Release)?;
    run.findings.note(if granted {
        "transaction level: B was granted the lock"
    } else {
        "transaction level: B had to wait"
    });
    Ok(())
}
