//! The members of the cell.

use axum::Json;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::error::Error;
use super::on_behalf::OnBehalf;
use super::status::Member;

#[derive(Serialize)]
pub(super) struct Members {
    members: Vec<Member>,
}

impl From<Vec<lockkeeper_api::v1::Member>> for Members {
    fn from(members: Vec<lockkeeper_api::v1::Member>) -> Members {
        Members { members: members.into_iter().map(Member::from).collect() }
    }
}

pub(super) async fn list(OnBehalf(calls): OnBehalf) -> Result<Json<Members>, Error> {
    calls.must_be_known()?;
    Ok(Json(calls.status().members.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Add {
    node_id: u64,
    address: String,
}

pub(super) async fn add(OnBehalf(calls): OnBehalf, Body(asked): Body<Add>) -> Result<Json<Members>, Error> {
    Ok(Json(calls.add_member(asked.node_id, &asked.address).await?.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Remove {
    node_id: u64,
}

pub(super) async fn remove(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Remove>,
) -> Result<Json<Members>, Error> {
    Ok(Json(calls.remove_member(asked.node_id).await?.into()))
}
