//! Rate limiters that all instances of a service share.

use lockkeeper_core::limits::INTERVAL_NS_MAX;
use lockkeeper_core::{Command, Refusal, TakeRate as TakeRateCommand};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Request};
use crate::v1;
use crate::wire::{answers, mirror};

/// Request to take permits of a rate limiter, all or none.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TakeRate {
    /// The limiter.
    pub limiter: String,
    /// The number of permits; 1 if absent.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub permits: Option<u64>,
    /// The number of permits that become available per second.
    pub rate_per_s: f64,
    /// The maximum number of available permits.
    pub burst: u64,
}

/// The answer to a request for permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RateTaken {
    /// Whether they were taken.
    pub allowed: bool,
    /// If not: when to retry.
    pub retry_after_ms: u64,
}

mirror!(RateTaken = v1::TakeRateResponse { allowed, retry_after_ms });

impl Call for TakeRate {
    type Answer = RateTaken;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"limiter": "mail", "rate_per_s": 10, "burst": 20}"#,
        r#"{"allowed": false, "retry_after_ms": 87}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        let TakeRate { limiter, permits, rate_per_s, burst } = self;
        if permits == Some(0) {
            return Err(Refusal::invalid("permits is 0: ask for at least one"));
        }
        take(&limiter, permits.unwrap_or(1), rate_per_s, burst)
    }
}

fn take(limiter: &str, permits: u64, rate_per_s: f64, burst: u64) -> Result<Request, Refusal> {
    let interval_ns = 1e9 / rate_per_s;
    if !(rate_per_s > 0.0 && (1.0..=INTERVAL_NS_MAX as f64).contains(&interval_ns)) {
        return Err(Refusal::invalid(format!(
            "rate_per_s is {rate_per_s}; it must be between one a day and 10^9 a second"
        )));
    }
    let interval_ns = interval_ns.round() as u64;
    Ok(Command::TakeRate(TakeRateCommand { limiter: limiter.into(), permits, interval_ns, burst }).into())
}

impl TryFrom<v1::TakeRateRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::TakeRateRequest) -> Result<Request, Refusal> {
        // 0 is the default of protobuf: the field is absent.
        take(&request.limiter, request.permits.max(1), request.rate_per_s, request.burst)
    }
}

answers! {
    Answer::RateTaken(taken) => RateTaken as taken;
    Answer::RateTaken(taken) => v1::TakeRateResponse as taken.into();
}
