//! Taking locks for a caller that waits for its answer, and may go away meanwhile.

use std::sync::atomic::Ordering;

use lockkeeper_core::command::NODE_REQUEST_PREFIX;
use lockkeeper_core::{Acquire, Command, Grant, Reply, SessionId, Wait, Waiting};
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::oneshot;

use super::{Api, unexpected};
use crate::callers::Caller;
use crate::failure::Failure;
use crate::undelivered::{AwaitedGrant, UndeliveredGrant};

impl Api {
    /// Takes a lock or several, waiting in the queue as long as the request says.
    ///
    /// A caller that goes away while it waits leaves the queue, unless it gave a request id: then it can
    /// come back with the same id and finds its place, or its grant.
    pub async fn acquire(&self, request: Acquire) -> Result<Grant, Failure> {
        let admitted = self.admit(Command::Acquire(request).into())?.into_command()?;
        let Command::Acquire(request) = admitted else {
            return Err(Failure::unknown("the acquire became another command"));
        };
        let grant = self.acquire_admitted(request).await?;
        grant.delivered();
        Ok(Grant::clone(&grant))
    }

    /// The same for an admitted request, and for a caller whose answer has to be sent: without a request id, the grant is
    /// given back if it is dropped before it was delivered.
    pub(super) async fn acquire_admitted(&self, mut request: Acquire) -> Result<UndeliveredGrant, Failure> {
        let mut leaves = None;
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
                leaves = Some(LeavesQueue { api: self, session, request: Some(id) });
            }
            None => {}
        }
        let command = Command::Acquire(request);
        let advice = command.retry_advice();
        let (sender, answer) = oneshot::channel();
        let shared = self.inner.shared.clone();
        // One that waits is taken out of the queue, and its grant with it, by `LeavesQueue`.
        let mut awaited =
            AwaitedGrant { shared, session, answer, gives_back: gives_back && leaves.is_none() };
        self.inner.shared.submit(command, Caller::Call(sender));
        let outcome = awaited.outcome().await;
        if let Some(mut guard) = leaves {
            guard.request = None;
        }
        match outcome.map_err(|failure| self.disclose(failure.in_doubt(advice)))? {
            Reply::Granted(grant) => {
                let undelivered = UndeliveredGrant::new(self.inner.shared.clone(), session, grant);
                if waits {
                    // Its rights may be gone since it asked: then the grant goes back.
                    self.may_receive(&undelivered)?;
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

/// Refuses the request ids that nodes draw themselves.
pub(crate) fn check_request_id(id: &SmolStr) -> Result<(), Failure> {
    match id.starts_with(NODE_REQUEST_PREFIX) {
        false => Ok(()),
        true => Err(Failure::Invalid(format!(
            "request ids that begin with {NODE_REQUEST_PREFIX} are the node's own: choose another"
        ))),
    }
}

/// Takes a request out of the queue if its caller goes away while it waits.
struct LeavesQueue<'a> {
    api: &'a Api,
    session: SessionId,
    /// None once the answer is there.
    request: Option<SmolStr>,
}

impl Drop for LeavesQueue<'_> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        let what = Waiting::Request(request);
        self.api.inner.shared.submit(Command::Cancel { session: self.session, what }, Caller::Nobody);
    }
}
