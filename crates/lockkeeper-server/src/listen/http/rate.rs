//! The rate limiter: the call is there and reads what it is sent, but this version has no limiter yet.

use serde::Deserialize;

use super::body::Body;
use super::error::Error;
use crate::failure::Failure;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "read to be checked")]
pub(super) struct Take {
    limiter: String,
    permits: Option<u64>,
    rate_per_s: f64,
    burst: u64,
}

pub(super) async fn take(_: Body<Take>) -> Error {
    Failure::Unsupported("rate limiters are not supported by this version".to_owned()).into()
}
