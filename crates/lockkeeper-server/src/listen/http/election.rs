//! Elections: stand, resign, hand over, see who leads, and watch it as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, StreamExt};
use lockkeeper_api::v1;
use lockkeeper_core::{Acquire, Locks, Token};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::body::Body;
use super::error::{self, Error};
use super::lock::{RequestWord, wait};
use super::on_behalf::OnBehalf;
use super::query::Query;
use super::with_grant::WithGrant;
use crate::wire;

/// An observer that has gone is noticed after this time at the latest.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Campaign {
    session: String,
    election: String,
    value: String,
    wait_ms: Option<u64>,
    wait_forever: Option<bool>,
    request: Option<RequestWord>,
}

#[derive(Serialize)]
pub(super) struct Elected {
    epoch: u64,
}

pub(super) async fn campaign(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Campaign>,
) -> Result<WithGrant<Elected>, Error> {
    let candidate = Acquire {
        request: asked.request.map(|RequestWord(id)| id),
        wait: wait(asked.wait_ms, asked.wait_forever),
        ..Acquire::new(wire::session(&asked.session)?, Locks::One(SmolStr::default()))
    };
    let grant = calls.campaign(&asked.election, asked.value.into(), candidate).await?;
    Ok(WithGrant::new(Elected { epoch: grant.token.0 }, grant))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resign {
    session: String,
    election: String,
    epoch: u64,
}

#[derive(Serialize)]
pub(super) struct Done {}

pub(super) async fn resign(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Resign>,
) -> Result<Json<Done>, Error> {
    let session = wire::session(&asked.session)?;
    calls.resign(session, &asked.election, Token(asked.epoch)).await?;
    Ok(Json(Done {}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandOver {
    session: String,
    election: String,
    epoch: u64,
    to: String,
}

pub(super) async fn hand_over(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<HandOver>,
) -> Result<Json<Done>, Error> {
    let HandOver { session, election, epoch, to } = asked;
    calls.hand_over(v1::HandOverRequest { session, election, epoch, to }).await?;
    Ok(Json(Done {}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ByName {
    name: String,
}

/// Null if nobody leads.
#[derive(Serialize)]
pub(super) struct Election {
    leader: Option<Leader>,
    candidates: u32,
}

#[derive(Serialize)]
struct Leader {
    value: String,
    epoch: u64,
    owner: String,
}

impl From<v1::Election> for Election {
    fn from(seen: v1::Election) -> Election {
        let leader = seen.leader.map(|v1::Leader { value, epoch, owner }| Leader { value, epoch, owner });
        Election { leader, candidates: seen.candidates }
    }
}

pub(super) async fn one(
    OnBehalf(calls): OnBehalf,
    Query(asked): Query<ByName>,
) -> Result<Json<Election>, Error> {
    Ok(Json(calls.election(&asked.name)?.into()))
}

/// Events named `leader`, the first at once; then, if this node can no longer know, one named `error`, and the end.
pub(super) async fn observe(
    OnBehalf(calls): OnBehalf,
    Query(asked): Query<ByName>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    // What is wrong from the start is a plain answer.
    calls.election(&asked.name)?;
    let events = calls.observe(asked.name).map(|seen| {
        let event = match seen {
            Ok(seen) => Event::default().event("leader").json_data(Election::from(seen)),
            Err(failure) => Event::default().event("error").json_data(error::envelope(&failure)),
        };
        Ok(event.unwrap_or_default())
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE_EVERY)))
}
