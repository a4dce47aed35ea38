//! A wait that leaves nothing behind when it is dropped.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Cell;
use crate::error::Error;
use crate::grant::Grant;

/// A request that the connection has in hand. Dropped before [`done`](Waiting::done), it leaves the queue, or gives back
/// what was granted.
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

    /// The answer. It still has to be given back if this is dropped.
    pub(super) async fn answer(&mut self) -> Result<Arc<Grant>, Error> {
        let answer = match &mut self.reply {
            Some(reply) => reply.await.unwrap_or(Err(Error::Closed)),
            None => Err(Error::Cancelled),
        };
        self.armed = answer.is_ok();
        answer
    }

    /// The caller takes over: a guard gives it back from now on.
    pub(super) fn done(mut self) {
        self.armed = false;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.armed {
            // First the receiver, then the message: an acquire that the connection takes up after the message then has
            // nobody to answer to, and is not sent.
            self.reply = None;
            let _ = self.cell.give_backs.send(self.number);
        }
    }
}
