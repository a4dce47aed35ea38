//! Rate limiters shared by all clients: one key for each limiter, which expires when the limiter is full again.

use std::sync::LazyLock;
use std::time::Duration;

use lockkeeper_core::limits;
use redis::Script;

use super::session::Instance;
use crate::error::Error;
use crate::limiter::Taken;

static RATE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("rate.lua")));

pub(super) async fn take(
    instance: &Instance,
    limiter: &str,
    permits: u64,
    rate_per_s: f64,
    burst: u64,
) -> Result<Taken, Error> {
    limits::check_name("name of the limiter", limiter).map_err(|error| Error::invalid(error.to_string()))?;
    let interval_us = 1e6 / rate_per_s;
    if !(rate_per_s > 0.0 && interval_us <= limits::INTERVAL_NS_MAX as f64 / 1e3) {
        return Err(Error::invalid(format!(
            "a rate of {rate_per_s} permits per second is out of range: use a rate above 0, and not below one permit per {} s",
            limits::INTERVAL_NS_MAX / 1_000_000_000
        )));
    }
    if permits == 0 || permits > burst || burst > limits::BURST_MAX {
        return Err(Error::invalid(format!(
            "cannot take {permits} permits with a burst of {burst}: take at least 1 and at most the burst, and use a burst \
             of at most {}",
            limits::BURST_MAX
        )));
    }
    let mut script = RATE.prepare_invoke();
    script.key(format!("lockkeeper:rate:{limiter}")).arg(permits).arg(interval_us).arg(burst);
    Ok(match instance.run_script::<u64>(&script).await? {
        0 => Ok(()),
        ms => Err(Duration::from_millis(ms)),
    })
}
