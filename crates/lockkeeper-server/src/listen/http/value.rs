//! Small values beside the locks, written under a token.

use axum::Json;
use lockkeeper_core::{Command, Fence, Reply, Token};
use serde::{Deserialize, Serialize};

use super::base64;
use super::body::{Body, Object};
use super::error::Error;
use super::on_behalf::OnBehalf;
use super::query::Query;
use crate::failure::Failure;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FenceFields {
    lock: String,
    token: u64,
}

/// The token as the condition of a write. A lock that cannot exist has no token.
fn fence(asked: Option<Object<FenceFields>>) -> Result<Option<Fence>, Error> {
    let Some(Object(asked)) = asked else { return Ok(None) };
    lockkeeper_core::limits::check_name("name of the lock", &asked.lock)?;
    Ok(Some(Fence { lock: asked.lock.into(), token: Token(asked.token) }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Put {
    key: String,
    value: Option<String>,
    value_base64: Option<String>,
    fence: Option<Object<FenceFields>>,
    if_version: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct Written {
    version: u64,
}

pub(super) async fn put(OnBehalf(calls): OnBehalf, Body(asked): Body<Put>) -> Result<Json<Written>, Error> {
    let bytes = match (asked.value, asked.value_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => base64::decode(&text)
            .ok_or_else(|| Error::invalid("value_base64 is not base64 with padding (RFC 4648)"))?,
        (None, None) => return Err(Error::invalid("missing field `value`: a string, or value_base64")),
        (Some(_), Some(_)) => {
            return Err(Error::invalid("value and value_base64 are both given: leave one out"));
        }
    };
    let command = Command::PutValue {
        key: asked.key.into(),
        value: bytes.into(),
        fence: fence(asked.fence)?,
        if_version: asked.if_version,
    };
    match calls.command(command).await? {
        Reply::Put { version } => Ok(Json(Written { version })),
        other => {
            Err(Failure::unknown(format!("the table gave an answer that does not fit ({other:?})")).into())
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Delete {
    key: String,
    fence: Option<Object<FenceFields>>,
    if_version: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct Deleted {}

pub(super) async fn delete(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Delete>,
) -> Result<Json<Deleted>, Error> {
    let command = Command::DeleteValue {
        key: asked.key.into(),
        fence: fence(asked.fence)?,
        if_version: asked.if_version,
    };
    calls.command(command).await?;
    Ok(Json(Deleted {}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ByKey {
    key: String,
}

/// A value that is not there has version 0, so that what was read can be written back with `if_version`.
#[derive(Serialize)]
pub(super) struct Value {
    key: String,
    /// Null if there is none, and if it is not UTF-8.
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    version: u64,
    token: u64,
}

pub(super) async fn one(OnBehalf(calls): OnBehalf, Query(asked): Query<ByKey>) -> Result<Json<Value>, Error> {
    let stored = calls.value(&asked.key)?;
    let (value, value_base64) = match (stored.version, String::from_utf8(stored.value)) {
        (0, _) => (None, None),
        (_, Ok(text)) => (Some(text), None),
        (_, Err(other)) => (None, Some(base64::encode(other.as_bytes()))),
    };
    Ok(Json(Value { key: stored.key, value, value_base64, version: stored.version, token: stored.token }))
}
