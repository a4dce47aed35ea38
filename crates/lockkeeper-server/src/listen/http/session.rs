//! Open, renew and close a session.

use axum::Json;
use lockkeeper_core::{Command, Refusal};
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::error::Error;
use super::on_behalf::OnBehalf;
use crate::wire;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Open {
    ttl_ms: u64,
    owner: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Opened {
    session: String,
    ttl_ms: u64,
}

pub(super) async fn open(OnBehalf(calls): OnBehalf, Body(asked): Body<Open>) -> Result<Json<Opened>, Error> {
    let owner = asked.owner.unwrap_or_default();
    let (session, ttl_ms) = calls.open_session(asked.ttl_ms, owner.into()).await?;
    Ok(Json(Opened { session: session.to_string(), ttl_ms }))
}

/// Names a session and nothing else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    session: String,
}

#[derive(Serialize)]
pub(super) struct KeptAlive {
    ttl_ms: u64,
}

pub(super) async fn keep_alive(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Named>,
) -> Result<Json<KeptAlive>, Error> {
    let session = wire::session(&asked.session)?;
    let ttl_ms = calls.keep_alive(session)?.ok_or(Refusal::SessionLost)?;
    Ok(Json(KeptAlive { ttl_ms }))
}

#[derive(Serialize)]
pub(super) struct Closed {}

pub(super) async fn close(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Named>,
) -> Result<Json<Closed>, Error> {
    let session = wire::session(&asked.session)?;
    calls.command(Command::CloseSession { session }).await?;
    Ok(Json(Closed {}))
}
