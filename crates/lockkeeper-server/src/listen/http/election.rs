//! Elections: the calls are there and read what they are sent, but this version cannot hold one yet.

use serde::Deserialize;

use super::body::Body;
use super::error::Error;
use super::query::Query;
use crate::failure::Failure;

fn unsupported() -> Error {
    Failure::Unsupported(
        "elections are not supported by this version: take a lock and write the leader's value under its token"
            .to_owned(),
    )
    .into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "read to be checked")]
pub(super) struct Campaign {
    session: String,
    election: String,
    value: String,
    wait_ms: Option<u64>,
}

pub(super) async fn campaign(_: Body<Campaign>) -> Error {
    unsupported()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "read to be checked")]
pub(super) struct Resign {
    session: String,
    election: String,
    epoch: u64,
}

pub(super) async fn resign(_: Body<Resign>) -> Error {
    unsupported()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "read to be checked")]
pub(super) struct ByName {
    name: String,
}

pub(super) async fn one(_: Query<ByName>) -> Error {
    unsupported()
}

pub(super) async fn observe(_: Query<ByName>) -> Error {
    unsupported()
}
