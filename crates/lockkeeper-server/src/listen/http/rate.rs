//! The rate limiter that all instances share.

use axum::Json;
use lockkeeper_api::v1;
use lockkeeper_core::Reply;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::error::Error;
use super::on_behalf::OnBehalf;
use crate::failure::Failure;
use crate::wire;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Take {
    limiter: String,
    permits: Option<u64>,
    rate_per_s: f64,
    burst: u64,
}

#[derive(Serialize)]
pub(super) struct Taken {
    allowed: bool,
    retry_after_ms: u64,
}

pub(super) async fn take(OnBehalf(calls): OnBehalf, Body(asked): Body<Take>) -> Result<Json<Taken>, Error> {
    let Take { limiter, permits, rate_per_s, burst } = asked;
    if permits == Some(0) {
        return Err(Error::invalid("permits is 0: ask for at least one"));
    }
    let request = v1::TakeRateRequest { limiter, permits: permits.unwrap_or(1), rate_per_s, burst };
    match calls.command(wire::take_rate_command(request)?).await? {
        Reply::Rate { allowed, retry_after_ms } => Ok(Json(Taken { allowed, retry_after_ms })),
        other => {
            Err(Failure::unknown(format!("the table gave an answer that does not fit ({other:?})")).into())
        }
    }
}
