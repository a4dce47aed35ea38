//! What happened and where it is crowded, asked of the leader.

use axum::Json;
use lockkeeper_core::Right;
use serde::Deserialize;

use super::error::Error;
use super::on_behalf::OnBehalf;
use super::query::Query;
use crate::observe::audit::Audit;
use crate::observe::graph::Graph;
use crate::observe::history::LockHistory;
use crate::observe::sessions::{SessionPage, Wanted};
use crate::observe::top::Top;

/// Empty means the same as absent.
fn number(name: &str, digits: &str) -> Result<usize, Error> {
    match digits {
        "" => Ok(0),
        digits => digits.parse().map_err(|_| {
            Error::invalid(format!("the query does not fit: {name} is \"{digits}\", not a whole number"))
        }),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfLock {
    name: String,
    #[serde(default)]
    limit: String,
}

pub(super) async fn history(
    OnBehalf(calls): OnBehalf,
    Query(asked): Query<OfLock>,
) -> Result<Json<LockHistory>, Error> {
    let limit = number("limit", &asked.limit)?;
    calls.may(Right::Read, &asked.name)?;
    Ok(Json(calls.look()?.history(&asked.name, limit)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    #[serde(default)]
    limit: String,
}

pub(super) async fn audit(
    OnBehalf(calls): OnBehalf,
    Query(asked): Query<Limit>,
) -> Result<Json<Audit>, Error> {
    let limit = number("limit", &asked.limit)?;
    calls.may_all(Right::Read, "")?;
    Ok(Json(calls.look()?.audit(limit)))
}

pub(super) async fn top(OnBehalf(calls): OnBehalf, Query(asked): Query<Limit>) -> Result<Json<Top>, Error> {
    let limit = number("limit", &asked.limit)?;
    calls.may_all(Right::Read, "")?;
    Ok(Json(calls.look()?.top(&calls.shared().hourly_stats, limit)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfLockOrAll {
    #[serde(default)]
    name: String,
}

pub(super) async fn graph(
    OnBehalf(calls): OnBehalf,
    Query(asked): Query<OfLockOrAll>,
) -> Result<Json<Graph>, Error> {
    let lock = (!asked.name.is_empty()).then_some(asked.name.as_str());
    calls.may_all(Right::Read, "")?;
    Ok(Json(calls.look()?.graph(lock)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sessions {
    #[serde(default)]
    owner: String,
    #[serde(default)]
    after: String,
    #[serde(default)]
    limit: String,
}

pub(super) async fn sessions(
    OnBehalf(calls): OnBehalf,
    Query(asked): Query<Sessions>,
) -> Result<Json<SessionPage>, Error> {
    let limit = number("limit", &asked.limit)?;
    let wanted = Wanted { after: Wanted::behind(&asked.after)?, owner: asked.owner, limit };
    calls.may_all(Right::Read, "")?;
    Ok(Json(calls.look()?.sessions(&calls.shared().expiry, &wanted)))
}
