//! `--once-per`: many hosts start a command at the same time, and one of them runs it.
//!
//! The engine's wall clock divides time into slots, so hosts with different clocks agree on the slot. The slot of the last
//! successful run is stored under the token of its holder and only moves forward: no slot runs twice, whatever the clocks do.

use std::time::Duration;

use lockkeeper::{Error, Fencing, Keeper, Token};
use serde::{Deserialize, Serialize};

use crate::duration::humanize;
use crate::escape;
use crate::failure::Failure;

/// The record of the last successful run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    /// Start of its slot, in milliseconds since 1970.
    slot: u64,
    by: String,
    token: u64,
    /// The number of skipped runs in the slot, and the last of them.
    skipped: u64,
    skipped_by: String,
}

/// The slot of this run.
pub(super) struct Slot<'a, F: Fencing> {
    keeper: &'a Keeper<F>,
    key: String,
    owner: String,
    begins: u64,
    last: Record,
}

impl<'a, F: Fencing> Slot<'a, F> {
    /// Takes the current slot, under the lock. `None` if it is already done: the skip is recorded and reported.
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
                Failure::other(format!("the value of \"{key}\" is not a record of runs: {error}"))
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
            "lockkeeper: skipped \"{name}\": the slot of {}, which began {} ago, was already run by {}",
            humanize(period),
            humanize(ago),
            escape::line(&slot.last.by)
        );
        Ok(None)
    }

    /// Records the success: the command does not run again in this slot.
    pub(super) async fn done(mut self, fence: (String, Token)) -> Result<(), Failure> {
        self.last =
            Record { slot: self.begins, by: self.owner.clone(), token: fence.1.0, ..Record::default() };
        self.write(fence).await
    }

    async fn write(&self, (lock, token): (String, Token)) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(&self.last)
            .map_err(|error| Failure::other(format!("failed to record the run: {error}")))?;
        match self.keeper.value(self.key.as_str()).fence_with(lock, token).put(bytes).await {
            Ok(_) => Ok(()),
            Err(error @ Error::Unknown(_)) => Err(Failure::new(
                "unknown",
                crate::failure::UNAVAILABLE,
                format!("the run may not have been recorded ({error}): the next host may repeat it"),
            )),
            Err(error) => Err(error.into()),
        }
    }
}

/// The start of the slot that contains a time.
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
