//! Tokens: one counter for the whole database, incremented by the script that grants.
//!
//! A counter for each lock would have to be kept forever for every name that was ever used. The counter is never less than
//! the server's clock in microseconds, so a Redis that lost its data does not start at 1 again. But a clock can be set back,
//! and a promoted replica may not have received the last token: hence the tokens are volatile.

use std::sync::LazyLock;

use redis::Script;

use super::lock::key;
use super::session::Instance;
use crate::error::Error;
use crate::view::ForcedRelease;

pub(super) const COUNTER: &str = "lockkeeper:token";

static FORCE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("force.lua")));

pub(super) async fn last(instance: &Instance) -> Result<u64, Error> {
    Ok(instance.query::<Option<u64>>(redis::cmd("GET").arg(COUNTER)).await?.unwrap_or(0))
}

pub(super) async fn force_release(instance: &Instance, lock: &str) -> Result<ForcedRelease, Error> {
    let mut script = FORCE.prepare_invoke();
    script.key(key(lock)).key(COUNTER);
    let (holders, last_token) = instance.run_script::<(u32, u64)>(&script).await?;
    Ok(ForcedRelease { holders, last_token })
}
