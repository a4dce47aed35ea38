//! Observing elections. The leader is whoever holds the lock `election/NAME`, its epoch is the token, and what it announces
//! is the value that it campaigned with. So there is one leader for the same reasons as there is one holder.

use std::time::Duration;

use futures_util::Stream;
use lockkeeper_api::Request;
use lockkeeper_api::election::Election;
use lockkeeper_core::LockName;

use super::Api;
use crate::failure::Failure;

/// How often an observer checks whether this node still leads the cell.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

impl Api {
    /// Who leads the election with this lock.
    pub(crate) fn election(&self, lock: &LockName) -> Result<Election, Failure> {
        self.ask(Request::Election(lock.clone()))?.try_into().map_err(Failure::from)
    }

    /// Who leads now, and again whenever that changes. Ends with an error when this node no longer leads the cell.
    pub(crate) fn observe(
        &self,
        lock: LockName,
    ) -> impl Stream<Item = Result<Election, Failure>> + Send + use<> {
        let api = self.clone();
        futures_util::stream::unfold(Some(None), move |state: Option<Option<u64>>| {
            let (api, lock) = (api.clone(), lock.clone());
            async move {
                let seen = api.next_leader(&lock, state?).await;
                let state = seen.as_ref().ok().map(|seen| Some(seen.epoch()));
                Some((seen, state))
            }
        })
    }

    /// Who leads, as soon as that is another one than the one with the known epoch; 0 means nobody.
    pub(crate) async fn next_leader(&self, lock: &LockName, known: Option<u64>) -> Result<Election, Failure> {
        // Subscribed before the first read: a change in between is not missed.
        let mut changes = self.shared().observers.observe(lock.clone())?;
        loop {
            changes.mark_unchanged();
            let seen = self.election(lock)?;
            if known != Some(seen.epoch()) {
                return Ok(seen);
            }
            // A change, or a moment in which this node may have ceased to lead.
            let _ = tokio::time::timeout(LOOK_AGAIN_AFTER, changes.changed()).await;
        }
    }
}
