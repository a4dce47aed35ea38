//! Acquires on behalf of a caller that waits for its answer and may disconnect while it waits.

use std::sync::atomic::Ordering;

use lockkeeper_core::command::NODE_REQUEST_PREFIX;
use lockkeeper_core::{Acquire, Command, Grant, Reply, SessionId, Wait, Waiting};
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::oneshot;

use super::{Api, unexpected};
use crate::effects::callers::Caller;
use crate::effects::undelivered::{AwaitedGrant, UndeliveredGrant};
use crate::failure::Failure;

impl Api {
    /// Acquires one lock or several, waiting in the queue for as long as the request says.
    ///
    /// Dropping the future while it waits leaves the queue, unless the request has an id: then the caller can retry with
    /// the same id and gets its place in the queue back, or its grant.
    pub async fn acquire(&self, request: Acquire) -> Result<Grant, Failure> {
        let admitted = self.admit(Command::Acquire(request).into())?.into_command()?;
        let Command::Acquire(request) = admitted else {
            return Err(Failure::unknown("the acquire became another command"));
        };
        let grant = self.acquire_admitted(request).await?;
        grant.delivered();
        Ok(Grant::clone(&grant))
    }

    /// Acquires for a request that is already admitted. Without a request id, the grant is released if it is dropped
    /// before it was delivered.
    pub(super) async fn acquire_admitted(&self, mut request: Acquire) -> Result<UndeliveredGrant, Failure> {
        let mut cancel_on_drop = None;
        let (session, gives_back) = (request.session, request.request.is_none());
        let waits = request.wait != Wait::No;
        match &request.request {
            Some(id) => check_request_id(id)?,
            None if waits => {
                let number = self.inner.requests.fetch_add(1, Ordering::Relaxed);
                let id = format_smolstr!(
                    "{NODE_REQUEST_PREFIX}{:x}-{number:x}",
                    self.inner.shared.proposer_id as u32
                );
                request.request = Some(id.clone());
                cancel_on_drop = Some(CancelOnDrop { api: self, session, request: Some(id) });
            }
            None => {}
        }
        let command = Command::Acquire(request);
        let advice = command.retry_advice();
        let (sender, answer) = oneshot::channel();
        let shared = self.inner.shared.clone();
        // If the request waits, `CancelOnDrop` removes it from the queue and releases its grant.
        let mut awaited =
            AwaitedGrant { shared, session, answer, gives_back: gives_back && cancel_on_drop.is_none() };
        self.inner.shared.submit(command, Caller::Call(sender));
        let outcome = awaited.outcome().await;
        if let Some(mut cancel) = cancel_on_drop {
            cancel.request = None;
        }
        match outcome.map_err(|failure| self.disclose(failure.in_doubt(advice)))? {
            Reply::Granted(grant) => {
                let undelivered =
                    UndeliveredGrant::new(self.inner.shared.clone(), session, grant, !gives_back);
                if waits {
                    // The caller's rights may have been revoked while it waited: then the grant is released.
                    self.check_may_receive(&undelivered)?;
                }
                if !gives_back {
                    undelivered.delivered();
                }
                Ok(undelivered)
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// Refuses request ids with the prefix that nodes use for their own.
pub(crate) fn check_request_id(id: &SmolStr) -> Result<(), Failure> {
    match id.starts_with(NODE_REQUEST_PREFIX) {
        false => Ok(()),
        true => Err(Failure::Invalid(format!(
            "request ids that begin with {NODE_REQUEST_PREFIX} are reserved for the node: choose another"
        ))),
    }
}

/// Cancels a waiting request when its caller disconnects.
struct CancelOnDrop<'a> {
    api: &'a Api,
    session: SessionId,
    /// None once the answer has arrived.
    request: Option<SmolStr>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        let what = Waiting::Request(request);
        self.api.inner.shared.submit(Command::Cancel { session: self.session, what }, Caller::Nobody);
    }
}
