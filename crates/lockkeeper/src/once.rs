//! Work that is done once, whoever comes and however often.

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

/// Steps are locks and values whose names begin like this.
const PREFIX: &str = "once/";

/// A step that is done once: its result is recorded under the token of whoever did it, and everybody who comes later gets
/// the recorded result. A crash in the middle is taken over by the next one who comes, so the step itself has to be
/// fenced or idempotent: hand the token on.
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

/// What is recorded.
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

    /// The time to live of the lock under which the step is done; see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Wait at most this long for somebody else who is at it. Default: as long as it takes.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.lock = self.lock.wait(limit);
        self
    }

    /// Does the step, unless it was done before: then the recorded result comes back and the work is not begun. If the
    /// work fails, nothing is recorded, and the next one who comes begins anew.
    ///
    /// # Errors
    ///
    /// The outer error: [`Error::Lost`] if the lease ended before the work did, so that somebody else may do it too;
    /// [`Error::StaleToken`] if somebody else had begun meanwhile and this result was not recorded; [`Error::Unknown`] if
    /// the record may or may not have been written: run it again to find out. The inner one is the work's own.
    ///
    /// # Cancel safety
    ///
    /// A dropped call drops the work; nothing is recorded, and the next one who comes begins anew.
    pub async fn run<W, T, E>(&self, work: impl FnOnce(Token) -> W) -> Result<Result<T, E>, Error>
    where
        W: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
    {
        if let Some(result) = self.recorded().await? {
            return Ok(Ok(result));
        }
        let step = |lease: Lease| async move {
            // Somebody else may have done it while this one waited.
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

    /// The recorded result, if the step was done.
    ///
    /// # Errors
    ///
    /// [`Error::Fatal`] if what is recorded is no such result.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn recorded<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let Some(value) = self.keeper.value(self.name.as_str()).get().await? else { return Ok(None) };
        let record: Record<T> = serde_json::from_slice(&value.bytes).map_err(|error| {
            Error::Fatal(format_smolstr!(
                "what is recorded for \"{}\" is another kind of result: {error}",
                self.name
            ))
        })?;
        Ok(Some(record.result))
    }

    /// Forgets that the step was done.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have forgotten it.
    pub async fn forget(&self) -> Result<(), Error> {
        self.keeper.value(self.name.as_str()).delete().await
    }
}
