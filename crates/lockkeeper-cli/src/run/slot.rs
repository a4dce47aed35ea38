//! `--once-per`: a command that many hosts start at the same time, and one of them runs.
//!
//! Time is cut into slots by the calendar of the engine, so hosts whose clocks differ mean the same slot. The slot of the last
//! run that succeeded is kept under the token of whoever ran it, and only ever moves forward: whatever a clock does, no
//! slot is run twice.

use std::time::Duration;

use lockkeeper::{Error, Fencing, Keeper, Token};
use serde::{Deserialize, Serialize};

use crate::duration::words;
use crate::escape;
use crate::failure::Failure;

/// What is known of the last run that succeeded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    /// When its slot began, in milliseconds since 1970.
    slot: u64,
    by: String,
    token: u64,
    /// How many came later in the same slot, and who was the last of them.
    skipped: u64,
    skipped_by: String,
}

/// The slot that this run is for.
pub(super) struct Slot<'a, F: Fencing> {
    keeper: &'a Keeper<F>,
    key: String,
    owner: String,
    begins: u64,
    last: Record,
}

impl<'a, F: Fencing> Slot<'a, F> {
    /// The present slot, under the lock. `None` if it was run already: that is recorded and said.
    pub(super) async fn take(
        keeper: &'a Keeper<F>,
        name: &str,
        period: Duration,
        owner: String,
        fence: (String, Token),
    ) -> Result<Option<Slot<'a, F>>, Failure> {
        let key = format!("once-per/{name}");
        let now = keeper.status().await?.unix_ms;
        let last = match keeper.value(key.as_str()).get().await? {
            None => Record::default(),
            Some(value) => serde_json::from_slice(&value.bytes).map_err(|error| {
                Failure::other(format!("what is kept under the key \"{key}\" is no record of runs: {error}"))
            })?,
        };
        let mut slot = Slot { keeper, key, owner, begins: slot_of(now, period), last };
        if slot.last.slot < slot.begins {
            return Ok(Some(slot));
        }
        slot.last.skipped += 1;
        slot.last.skipped_by = slot.owner.clone();
        slot.write(fence).await?;
        let ago = Duration::from_millis(now.saturating_sub(slot.last.slot));
        eprintln!(
            "lockkeeper: \"{name}\" was run already in this slot of {}, which began {} ago, by {}: skipped",
            words(period),
            words(ago),
            escape::line(&slot.last.by)
        );
        Ok(None)
    }

    /// The command has succeeded: nobody else runs it in this slot.
    pub(super) async fn done(mut self, fence: (String, Token)) -> Result<(), Failure> {
        self.last =
            Record { slot: self.begins, by: self.owner.clone(), token: fence.1.0, ..Record::default() };
        self.write(fence).await
    }

    async fn write(&self, (lock, token): (String, Token)) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(&self.last)
            .map_err(|error| Failure::other(format!("the run cannot be recorded: {error}")))?;
        match self.keeper.value(self.key.as_str()).fence_with(lock, token).put(bytes).await {
            Ok(_) => Ok(()),
            Err(error @ Error::Unknown(_)) => Err(Failure::new(
                "unknown",
                crate::failure::UNAVAILABLE,
                format!("the run may not have been recorded ({error}): the next host may run it again"),
            )),
            Err(error) => Err(error.into()),
        }
    }
}

/// When the slot began that a moment lies in.
fn slot_of(unix_ms: u64, period: Duration) -> u64 {
    let period = u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1);
    unix_ms / period * period
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_begin_at_whole_multiples() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(slot_of(3_600_000, hour), 3_600_000);
        assert_eq!(slot_of(7_199_999, hour), 3_600_000);
        assert_eq!(slot_of(5, Duration::ZERO), 5);
    }
}
