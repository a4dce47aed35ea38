//! A client's stream as one thing that is polled: frames come in and are carried out, frames go out. There
//! is no task between the socket and the proposer, and a client that does not read is not read from.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use lockkeeper_api::v1;
use tokio::time::Instant;

use super::connection::{AwaitedPermit, Connection, Intake};
use super::costs;
use super::decode_limits::{OPERATIONS_PER_FRAME_MAX, decoded_bytes};
use crate::api::Api;
use crate::budget::{Charge, ConnectionBudget, SMALL_BYTES};
use crate::listen::LogThrottle;
use crate::security::Who;
use crate::turns::TurnPermit;

/// Operations carried out in one go before others get their turn, also if there are answers to write all the time: a
/// client whose requests are all refused must not keep renewals of others waiting.
const OPERATIONS_PER_TURN: usize = 512;
/// The same for the answers they bring: what is long to send takes long to put together.
const BYTES_PER_TURN: usize = 256 << 10;
/// The same for frames, whatever is in them.
const FRAMES_PER_TURN: usize = 32;
/// The same for time: some operations take long.
const TURN_TIME_MAX: Duration = Duration::from_millis(1);
/// The clock is read once for so many operations.
const OPERATIONS_PER_CLOCK: usize = 8;

/// The stream of frames to a client, which takes in the client's frames on the way.
pub struct ClientStream<Inbound> {
    inbound: Inbound,
    /// What is left of the frame that came in last. The next one is read when this is empty, and nothing of it is carried
    /// out while the answers before it have used up the connection's budget.
    pending: std::vec::IntoIter<v1::Operation>,
    /// Counts `pending` in the budget of the client's identity, as soon as it has to wait.
    pending_charge: Option<Charge>,
    connection: Arc<Connection>,
    budget: ConnectionBudget,
    api: Api,
    turn: Turn,
    gate: Gate,
}

/// Waits for the permit to do what takes long.
enum Gate {
    Open,
    /// The next operation is a read whose cost grows with what is in the table.
    Read(AwaitedPermit),
    /// The last turn was used up.
    Bulk(AwaitedPermit),
}

/// What was done for a client since others had their turn.
#[derive(Debug, Default)]
struct Turn {
    operations: usize,
    bytes: usize,
    frames: usize,
    /// When the first operations were done.
    began: Option<Instant>,
    has_had_its_time: bool,
}

impl Turn {
    fn is_over(&self) -> bool {
        self.operations >= OPERATIONS_PER_TURN
            || self.bytes >= BYTES_PER_TURN
            || self.frames >= FRAMES_PER_TURN
            || self.has_had_its_time
    }

    fn count_operation(&mut self) {
        self.operations += 1;
        if self.operations.is_multiple_of(OPERATIONS_PER_CLOCK) {
            let began = *self.began.get_or_insert_with(Instant::now);
            self.has_had_its_time |= began.elapsed() >= TURN_TIME_MAX;
        }
    }
}

impl<Inbound> ClientStream<Inbound> {
    /// Serves a client whose frames come from `inbound`.
    pub fn new(inbound: Inbound, api: Api) -> ClientStream<Inbound> {
        ClientStream::within(&ConnectionBudget::default(), inbound, api)
    }

    /// The same for one of several streams on a connection.
    pub(crate) fn within(budget: &ConnectionBudget, inbound: Inbound, api: Api) -> ClientStream<Inbound> {
        ClientStream::on(Arc::new(Connection::default()), budget, inbound, api)
    }

    /// The same for a connection that somebody else looks at too.
    pub(crate) fn on(
        connection: Arc<Connection>,
        budget: &ConnectionBudget,
        inbound: Inbound,
        api: Api,
    ) -> ClientStream<Inbound> {
        connection.set_budget(api.budget(budget));
        if *api.who() != Who::Nobody || !api.is_enforced() {
            connection.recognise();
        }
        connection.set_viewer(&api);
        connection.welcome(api.home().identity().node_id);
        let pending = Vec::new().into_iter();
        let budget = budget.clone();
        ClientStream {
            inbound,
            pending,
            pending_charge: None,
            connection,
            budget,
            api,
            turn: Turn::default(),
            gate: Gate::Open,
        }
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
            let permit = match self.pending.as_slice().first() {
                Some(operation) if costs::grows_with_table(&self.api, operation) => {
                    ready!(self.poll_read_permit(context))
                }
                _ => None,
            };
            if let Some(operation) = self.pending.next() {
                super::operation::carry_out(&mut self.api, &self.connection, &self.budget, operation);
                drop(permit);
                self.turn.count_operation();
                continue;
            }
            self.pending_charge = None;
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

    /// Ready when the next operation may be carried out, a read that can take long.
    fn poll_read_permit(&mut self, context: &mut Context<'_>) -> Poll<Option<TurnPermit>> {
        if !matches!(self.gate, Gate::Read(_)) {
            self.gate = self.connection.read_turn().map_or(Gate::Open, Gate::Read);
        }
        let Gate::Read(permit) = &mut self.gate else { return Poll::Ready(None) };
        let permit = ready!(permit.as_mut().poll(context));
        self.gate = Gate::Open;
        Poll::Ready(Some(permit))
    }

    /// Ready when a stream that has used up its last turn may have another.
    fn poll_bulk_permit(&mut self, context: &mut Context<'_>) -> Poll<Option<TurnPermit>> {
        let Gate::Bulk(permit) = &mut self.gate else { return Poll::Ready(None) };
        let permit = ready!(permit.as_mut().poll(context));
        self.gate = Gate::Open;
        Poll::Ready(Some(permit))
    }

    /// Counts operations that have to wait. False if there is no room for so many of them.
    fn charge_pending(&mut self) -> bool {
        if self.pending_charge.is_some() || self.pending.as_slice().is_empty() {
            return true;
        }
        let bytes = decoded_bytes(self.pending.as_slice());
        let fits = bytes <= SMALL_BYTES || self.connection.has_identity_room();
        match fits {
            true => self.pending_charge = self.connection.charge_identity(bytes),
            false => {
                static THROTTLE: LogThrottle = LogThrottle::new();
                if let Some(suppressed) = THROTTLE.allow() {
                    tracing::warn!(
                        bytes,
                        suppressed,
                        "closed a stream: too many operations wait, and the client's identity is above its byte budget"
                    );
                }
            }
        }
        fits
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
            this.gate = this.connection.bulk_turn().map_or(Gate::Open, Gate::Bulk);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Answers go out whether or not there is a permit for further operations.
        let Poll::Ready(permit) = this.poll_bulk_permit(context) else {
            return this.connection.poll_frame(context);
        };
        let polled = this.poll_operations(context);
        drop(permit);
        match polled {
            Poll::Pending if this.charge_pending() => this.connection.poll_frame(context),
            Poll::Pending | Poll::Ready(()) => Poll::Ready(None),
        }
    }
}

impl<Inbound> Drop for ClientStream<Inbound> {
    fn drop(&mut self) {
        // Its sessions live on: the client comes back and attaches to them, or they expire.
        self.connection.close();
        self.api.shared().callers.forget(&self.connection, &self.connection.sessions());
    }
}
