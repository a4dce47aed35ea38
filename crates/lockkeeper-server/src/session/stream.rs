//! A client's stream as one thing that is polled: frames come in and are carried out, frames go out. There
//! is no task between the socket and the proposer, and a client that does not read is not read from.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use lockkeeper_proto::v1;

use super::connection::{Connection, Intake};
use crate::budget::ConnectionBudget;
use crate::calls::Calls;
use crate::listen::LogThrottle;
use crate::security::Who;

/// Most operations in one frame; our library sends a thousand at most.
const OPERATIONS_PER_FRAME_MAX: usize = 16_384;
/// Operations carried out in one go before others get their turn, also if there are answers to write all the time: a
/// client whose requests are all refused must not keep renewals of others waiting.
const OPERATIONS_PER_TURN: usize = 512;
/// The same for the answers they bring: what is long to send takes long to put together.
const BYTES_PER_TURN: usize = 256 << 10;
/// The same for frames, whatever is in them.
const FRAMES_PER_TURN: usize = 32;

/// The stream of frames to a client, which takes in the client's frames on the way.
pub struct ClientStream<Inbound> {
    inbound: Inbound,
    /// What is left of the frame that came in last. The next one is read when this is empty, and nothing of it is carried
    /// out while the answers before it have used up the connection's budget.
    pending: std::vec::IntoIter<v1::Operation>,
    connection: Arc<Connection>,
    budget: ConnectionBudget,
    calls: Calls,
    turn: Turn,
}

/// What was done for a client since others had their turn.
#[derive(Debug, Default)]
struct Turn {
    operations: usize,
    bytes: usize,
    frames: usize,
}

impl Turn {
    fn is_over(&self) -> bool {
        self.operations >= OPERATIONS_PER_TURN
            || self.bytes >= BYTES_PER_TURN
            || self.frames >= FRAMES_PER_TURN
    }
}

impl<Inbound> ClientStream<Inbound> {
    /// Serves a client whose frames come from `inbound`.
    pub fn new(inbound: Inbound, calls: Calls) -> ClientStream<Inbound> {
        ClientStream::within(&ConnectionBudget::default(), inbound, calls)
    }

    /// The same for one of several streams on a connection.
    pub(crate) fn within(budget: &ConnectionBudget, inbound: Inbound, calls: Calls) -> ClientStream<Inbound> {
        ClientStream::on(Arc::new(Connection::default()), budget, inbound, calls)
    }

    /// The same for a connection that somebody else looks at too.
    pub(crate) fn on(
        connection: Arc<Connection>,
        budget: &ConnectionBudget,
        inbound: Inbound,
        calls: Calls,
    ) -> ClientStream<Inbound> {
        connection.set_budget(calls.budget(budget));
        if *calls.who() != Who::Nobody || !calls.is_enforced() {
            connection.recognise();
        }
        connection.set_viewer(&calls);
        connection.welcome(calls.home().identity().node_id);
        let pending = Vec::new().into_iter();
        let budget = budget.clone();
        ClientStream { inbound, pending, connection, budget, calls, turn: Turn::default() }
    }
}

impl<Inbound, E> ClientStream<Inbound>
where
    Inbound: Stream<Item = Result<v1::ClientFrame, E>> + Unpin,
{
    /// Carries out what has come in, until there is no more, the turn is over or the answers have to be read first. The
    /// end of the stream is `Ready`.
    fn poll_operations(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut queued_before = None;
        loop {
            // Asked before each operation: one frame may ask for more than fits into the node's memory.
            let queued = match self.connection.intake() {
                Intake::Open { bytes_queued } => bytes_queued,
                Intake::Closed => return Poll::Ready(()),
                Intake::Ending => return Poll::Pending,
                Intake::Behind => {
                    // There is a frame to be read now, and after it the next poll goes on here.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            self.turn.bytes += queued.saturating_sub(queued_before.unwrap_or(queued));
            queued_before = Some(queued);
            if self.turn.is_over() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(operation) = self.pending.next() {
                super::operation::carry_out(&mut self.calls, &self.connection, &self.budget, operation);
                self.turn.operations += 1;
                continue;
            }
            match Pin::new(&mut self.inbound).poll_next(context) {
                Poll::Ready(Some(Ok(frame))) => self.take_in(frame),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => {
                    self.turn = Turn::default();
                    return Poll::Pending;
                }
            }
        }
    }

    fn take_in(&mut self, frame: v1::ClientFrame) {
        self.turn.frames += 1;
        let operations = frame.operations.len();
        if operations > OPERATIONS_PER_FRAME_MAX {
            static THROTTLE: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = THROTTLE.allow() {
                tracing::warn!(operations, suppressed, "closed a stream: too many operations in one frame");
            }
            return self.connection.close();
        }
        self.pending = frame.operations.into_iter();
    }
}

impl<Inbound, E> Stream for ClientStream<Inbound>
where
    Inbound: Stream<Item = Result<v1::ClientFrame, E>> + Unpin,
{
    type Item = v1::ServerFrame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::ServerFrame>> {
        let this = &mut *self;
        if this.turn.is_over() {
            this.turn = Turn::default();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match this.poll_operations(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => this.connection.poll_frame(context),
        }
    }
}

impl<Inbound> Drop for ClientStream<Inbound> {
    fn drop(&mut self) {
        // Its sessions live on: the client comes back and attaches to them, or they expire.
        self.connection.close();
        self.calls.shared().callers.forget(&self.connection, &self.connection.sessions());
    }
}
