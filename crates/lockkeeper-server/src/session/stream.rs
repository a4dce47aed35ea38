//! A client's stream as one thing that is polled: frames come in and are carried out, frames go out. There
//! is no task between the socket and the proposer, and a client that does not read is not read from.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use lockkeeper_proto::v1;

use super::connection::Connection;
use crate::calls::Calls;
use crate::security::Who;

/// Operations taken in one go before others get their turn, also if there are answers to write all the time: a client
/// whose requests are all refused must not keep renewals of others waiting. A frame is never split, so it can be a
/// frame more.
const OPERATIONS_PER_TURN: usize = 512;
/// The same for frames, whatever is in them.
const FRAMES_PER_TURN: usize = 32;

/// The stream of frames to a client, which takes in the client's frames on the way.
pub struct ClientStream<Inbound> {
    inbound: Inbound,
    connection: Arc<Connection>,
    calls: Calls,
    /// Operations since others had their turn.
    taken: usize,
}

impl<Inbound> ClientStream<Inbound> {
    /// Serves a client whose frames come from `inbound`.
    pub fn new(inbound: Inbound, calls: Calls) -> ClientStream<Inbound> {
        ClientStream::on(Arc::new(Connection::default()), inbound, calls)
    }

    /// The same for a connection that somebody else looks at too.
    pub(crate) fn on(connection: Arc<Connection>, inbound: Inbound, calls: Calls) -> ClientStream<Inbound> {
        if *calls.who() != Who::Nobody || !calls.guard().is_strict() {
            connection.recognise();
        }
        connection.welcome(calls.home().identity().node_id);
        ClientStream { inbound, connection, calls, taken: 0 }
    }
}

impl<Inbound, E> Stream for ClientStream<Inbound>
where
    Inbound: Stream<Item = Result<v1::ClientFrame, E>> + Unpin,
{
    type Item = v1::ServerFrame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::ServerFrame>> {
        let this = &mut *self;
        if this.taken >= OPERATIONS_PER_TURN {
            this.taken = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        for turn in 0.. {
            if this.connection.is_closed() {
                return Poll::Ready(None);
            }
            if this.connection.is_ending() {
                break;
            }
            if turn == FRAMES_PER_TURN || this.taken >= OPERATIONS_PER_TURN || this.connection.is_behind() {
                context.waker().wake_by_ref();
                break;
            }
            match Pin::new(&mut this.inbound).poll_next(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    this.taken += frame.operations.len();
                    super::operation::carry_out(&mut this.calls, &this.connection, frame)
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
                Poll::Pending => {
                    this.taken = 0;
                    break;
                }
            }
        }
        this.connection.poll_frame(context)
    }
}

impl<Inbound> Drop for ClientStream<Inbound> {
    fn drop(&mut self) {
        // Its sessions live on: the client comes back and attaches to them, or they expire.
        self.connection.close();
        self.calls.shared().callers.forget(&self.connection, &self.connection.sessions());
    }
}
