//! A step that runs once across all clients.

use std::future::Future;
use std::time::Duration;

use lockkeeper_core::Token;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use crate::error::Error;
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::run::Lease;

/// The prefix of the lock and the value of a step.
const PREFIX: &str = "once/";

/// Step that runs once across all clients, such as a cron slot or a step of a workflow.
///
/// The first client to finish records the result under its token; later clients get the recorded result. If a client
/// crashes in the middle, the next one runs the step again, so the step itself has to be fenced or idempotent: pass the
/// token on.
///
/// ```no_run
/// # use lockkeeper::prelude::*;
/// # async fn charge(_token: lockkeeper::Token) -> Result<String, lockkeeper::Error> { Ok("receipt".into()) }
/// # async fn example(keeper: Keeper) -> Result<(), lockkeeper::Error> {
/// let receipt: String = keeper.once("order-42/charge").run(|token| charge(token)).await??;
/// # Ok(()) }
/// ```
///
/// Records are kept until [`forget`](Once::forget) is called.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is run"]
pub struct Once {
    keeper: Keeper,
    name: SmolStr,
    lock: Lock,
}

/// The recorded result.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    by: String,
    token: u64,
    result: T,
}

impl Once {
    pub(crate) fn new(keeper: Keeper, name: SmolStr) -> Once {
        let name = format_smolstr!("{PREFIX}{name}");
        let lock = Lock::new(keeper.clone(), name.clone());
        Once { keeper, name, lock }
    }

    /// Sets the time to live of the lock under which the step runs; see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Waits at most this long for another client that runs the step. Default: no limit.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.lock = self.lock.wait(limit);
        self
    }

    /// Runs the step, or returns the recorded result if it was done before.
    ///
    /// If the work fails, nothing is recorded, and the next call runs it again.
    ///
    /// # Errors
    ///
    /// The outer error: [`Error::Lost`] if the lease ended before the work did, so another client may run it too;
    /// [`Error::StaleToken`] if another client has started meanwhile and this result was not recorded; [`Error::Unknown`]
    /// if the result may or may not have been recorded: run it again to find out. The inner error is the work's own.
    ///
    /// # Cancel safety
    ///
    /// A dropped call drops the work. A result that was being recorded may or may not have been; otherwise the next call
    /// runs the step again.
    pub async fn run<W, T, E>(&self, work: impl FnOnce(Token) -> W) -> Result<Result<T, E>, Error>
    where
        W: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
    {
        if let Some(result) = self.recorded().await? {
            return Ok(Ok(result));
        }
        let step = |lease: Lease| async move {
            // Another client may have finished the step while this one waited.
            if let Some(result) = self.recorded().await? {
                return Ok(Ok(result));
            }
            let result = match work(lease.token()).await {
                Ok(result) => result,
                Err(error) => return Ok(Err(error)),
            };
            let record =
                Record { by: self.keeper.shared.options.owner.clone(), token: lease.token().0, result };
            let bytes = serde_json::to_vec(&record).map_err(|error| {
                Error::invalid(format!("the result of \"{}\" cannot be recorded: {error}", self.name))
            })?;
            self.keeper.value(self.name.as_str()).fence_lease(&lease).if_version(0).put(bytes).await?;
            Ok(Ok(record.result))
        };
        self.lock.run(step).await?
    }

    /// Returns the recorded result, if the step was done.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if the record is not a result of this type.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn recorded<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let Some(value) = self.keeper.value(self.name.as_str()).get().await? else { return Ok(None) };
        let record: Record<T> = serde_json::from_slice(&value.bytes).map_err(|error| {
            Error::Fatal(format_smolstr!(
                "the recorded result of \"{}\" has another type: {error}",
                self.name
            ))
        })?;
        Ok(Some(record.result))
    }

    /// Deletes the recorded result, so that the step can run again.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have deleted it.
    pub async fn forget(&self) -> Result<(), Error> {
        self.keeper.value(self.name.as_str()).delete().await
    }
}
