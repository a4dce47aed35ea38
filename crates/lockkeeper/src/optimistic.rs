//! An optimistic update: an alternative to a lock.

use crate::backoff;
use crate::error::Error;
use crate::fencing::Fencing;
use crate::keeper::Keeper;

impl<F: Fencing> Keeper<F> {
    /// Updates a value by compare-and-swap: reads it, applies `change`, writes the result unless the value has changed, and
    /// otherwise retries after a pause.
    ///
    /// `change` gets `None` if there is no value, and returns `None` to leave it as it is; it may be called several times.
    /// Returns the resulting version of the value.
    ///
    /// Prefer this to a lock where it fits: no client waits for one that has crashed. For something that must exist only
    /// once (an idempotency key), write it with [`if_version(0)`](crate::ValueHandle::if_version).
    ///
    /// ```no_run
    /// # use lockkeeper::prelude::*;
    /// # async fn example(keeper: Keeper) -> Result<(), lockkeeper::Error> {
    /// keeper
    ///     .optimistic("visits", |bytes| {
    ///         let before: u64 = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse().ok()).unwrap_or(0);
    ///         Some((before + 1).to_string().into_bytes())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if the answer to the write was lost: read the value before you repeat it.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have written the value.
    pub async fn optimistic(
        &self,
        key: impl Into<String>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<u64, Error> {
        let key = key.into();
        let mut attempt = 0;
        loop {
            let value = self.value(key.as_str());
            let before = value.get().await?;
            let version = before.as_ref().map_or(0, |before| before.version);
            let Some(after) = change(before.as_ref().map(|before| before.bytes.as_slice())) else {
                return Ok(version);
            };
            match value.if_version(version).put(after).await {
                Err(Error::VersionMismatch { .. }) => {
                    tokio::time::sleep(backoff::pause(attempt)).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }
}
