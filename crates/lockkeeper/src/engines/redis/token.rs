//! Tokens: one counter for the whole database, raised in the same script as the grant.
//!
//! One counter, because a counter for each name would stay behind for each name that was ever used. It is never below
//! the server's clock in microseconds, so that a Redis that lost its data does not begin at 1 again; but a clock can be
//! set back, and a replica that takes over may not have seen the last number. Hence volatile.

use std::sync::LazyLock;

use redis::Script;

use super::lock::key;
use super::session::Instance;
use crate::error::Error;
use crate::view::ForcedRelease;

pub(super) const COUNTER: &str = "lockkeeper:token";

static FORCE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("force.lua")));

pub(super) async fn last(instance: &Instance) -> Result<u64, Error> {
    Ok(instance.ask::<Option<u64>>(redis::cmd("GET").arg(COUNTER)).await?.unwrap_or(0))
}

pub(super) async fn force_release(instance: &Instance, lock: &str) -> Result<ForcedRelease, Error> {
    let mut script = FORCE.prepare_invoke();
    script.key(key(lock)).key(COUNTER);
    let (holders, last_token) = instance.run::<(u32, u64)>(&script).await?;
    Ok(ForcedRelease { holders, last_token })
}
