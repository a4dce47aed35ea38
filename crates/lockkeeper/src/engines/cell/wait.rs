//! A wait that cleans up when it is dropped.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Cell;
use crate::error::Error;
use crate::grant::Grant;

/// An acquire that is pending in the connection. Dropped before [`done`](Waiting::done), it leaves the queue or releases
/// its grant.
pub(super) struct Waiting<'a> {
    cell: &'a Cell,
    number: u64,
    reply: Option<oneshot::Receiver<Result<Arc<Grant>, Error>>>,
    armed: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(
        cell: &'a Cell,
        number: u64,
    ) -> (Waiting<'a>, oneshot::Sender<Result<Arc<Grant>, Error>>) {
        let (sender, reply) = oneshot::channel();
        (Waiting { cell, number, reply: Some(reply), armed: true }, sender)
    }

    /// Waits for the answer. A grant is still released if this is dropped.
    pub(super) async fn answer(&mut self) -> Result<Arc<Grant>, Error> {
        let answer = match &mut self.reply {
            Some(reply) => reply.await.unwrap_or(Err(Error::Closed)),
            None => Err(Error::Cancelled),
        };
        self.armed = answer.is_ok();
        answer
    }

    /// Disarms the wait: the guard releases the grant from now on.
    pub(super) fn done(mut self) {
        self.armed = false;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.armed {
            // Drop the receiver first: if the connection accepts the acquire after this release, it sees the closed channel
            // and does not send the acquire.
            self.reply = None;
            let _ = self.cell.background_releases.send(self.number);
        }
    }
}
