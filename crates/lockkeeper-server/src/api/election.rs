//! Election observers. The leader of an election is the holder of the lock `election/NAME`, its epoch is the token, and the
//! value is what it campaigned with. There is at most one leader because there is at most one holder.

use std::time::Duration;

use futures_util::Stream;
use lockkeeper_api::Request;
use lockkeeper_api::election::Election;
use lockkeeper_core::LockName;

use super::Api;
use crate::failure::Failure;
use crate::limits::budget::ObserverSeat;

/// How often an observer checks whether this node still leads the cell.
const LEADERSHIP_CHECK_EVERY: Duration = Duration::from_millis(500);

impl Api {
    /// Returns the current leader of the election with this lock.
    pub(crate) fn election(&self, lock: &LockName) -> Result<Election, Failure> {
        self.read_authorized(Request::Election(lock.clone()))?.try_into().map_err(Failure::from)
    }

    /// Streams the current leader and every change. Ends with an error when this node no longer leads the cell. The stream
    /// occupies the seat.
    pub(crate) fn observe(
        &self,
        lock: LockName,
        seat: ObserverSeat,
    ) -> impl Stream<Item = Result<Election, Failure>> + Send + use<> {
        let api = self.clone();
        futures_util::stream::unfold(Some((None, seat)), move |state: Option<(Option<u64>, ObserverSeat)>| {
            let (api, lock) = (api.clone(), lock.clone());
            async move {
                let (known, seat) = state?;
                let seen = api.next_leader(&lock, known).await;
                let state = seen.as_ref().ok().map(|seen| (Some(seen.epoch()), seat));
                Some((seen, state))
            }
        })
    }

    /// Waits until the leader differs from the one with the known epoch; epoch 0 means that there is no leader.
    pub(crate) async fn next_leader(&self, lock: &LockName, known: Option<u64>) -> Result<Election, Failure> {
        // Subscribes before the first read, so that no change in between is missed.
        let mut changes = self.shared().observers.observe(lock.clone())?;
        loop {
            changes.mark_unchanged();
            let seen = self.election(lock)?;
            if known != Some(seen.epoch()) {
                return Ok(seen);
            }
            // Also wakes up without a change, to notice that this node has lost leadership.
            let _ = tokio::time::timeout(LEADERSHIP_CHECK_EVERY, changes.changed()).await;
        }
    }
}
