//! A client's stream as a single `Stream`: polling it carries out incoming frames and yields outgoing ones. There is no task
//! between the socket and the proposer, and the node does not read from a client that does not read.

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
use crate::limits::budget::{Charge, ConnectionBudget, SMALL_BYTES};
use crate::limits::log_throttle::LogThrottle;
use crate::limits::turns::TurnPermit;
use crate::security::Principal;

/// Most operations in one turn, even if there are always answers to write: a client whose requests are all refused must not
/// delay renewals of others.
const OPERATIONS_PER_TURN: usize = 512;
/// Most bytes of answers in one turn: long answers take long to build.
const BYTES_PER_TURN: usize = 256 << 10;
/// Most frames in one turn, whatever is in them.
const FRAMES_PER_TURN: usize = 32;
/// What the transport keeps of frames that are not read while operations wait: an HTTP/2 window.
const TRANSPORT_BYTES: usize = 64 << 10;
/// Longest turn: some operations take long.
const TURN_TIME_MAX: Duration = Duration::from_millis(1);
/// The clock is read once per this many operations.
const OPERATIONS_PER_CLOCK: usize = 8;

/// The stream of frames to a client. Polling it also processes the client's frames.
pub struct ClientStream<Inbound> {
    inbound: Inbound,
    /// The rest of the last frame. The next frame is read when this is empty. No operation is carried out while the client
    /// has too many unread answers.
    pending: std::vec::IntoIter<v1::Operation>,
    /// Counts `pending` in the budget of the client's identity once it has to wait.
    pending_charge: Option<Charge>,
    connection: Arc<Connection>,
    budget: ConnectionBudget,
    api: Api,
    turn: Turn,
    permit_state: PermitState,
}

/// Whether the stream waits for a permit for long work.
enum PermitState {
    NotNeeded,
    /// The next operation is a read whose cost grows with the table.
    AwaitingRead(AwaitedPermit),
    /// The last turn was used up.
    AwaitingBulk(AwaitedPermit),
}

/// The work done for a client in the current turn.
#[derive(Debug, Default)]
struct Turn {
    operations: usize,
    bytes: usize,
    frames: usize,
    /// When the first operations were counted.
    began: Option<Instant>,
    time_used_up: bool,
}

impl Turn {
    fn is_over(&self) -> bool {
        self.operations >= OPERATIONS_PER_TURN
            || self.bytes >= BYTES_PER_TURN
            || self.frames >= FRAMES_PER_TURN
            || self.time_used_up
    }

    fn count_operation(&mut self) {
        self.operations += 1;
        if self.operations.is_multiple_of(OPERATIONS_PER_CLOCK) {
            let began = *self.began.get_or_insert_with(Instant::now);
            self.time_used_up |= began.elapsed() >= TURN_TIME_MAX;
        }
    }
}

impl<Inbound> ClientStream<Inbound> {
    /// Serves a client whose frames arrive from `inbound`.
    pub fn new(inbound: Inbound, api: Api) -> ClientStream<Inbound> {
        ClientStream::within(&ConnectionBudget::default(), inbound, api)
    }

    /// Serves one of several streams on a connection.
    pub(crate) fn within(budget: &ConnectionBudget, inbound: Inbound, api: Api) -> ClientStream<Inbound> {
        ClientStream::on(Arc::new(Connection::default()), budget, inbound, api)
    }

    /// Serves a client with a `Connection` that the caller shares.
    pub(crate) fn on(
        connection: Arc<Connection>,
        budget: &ConnectionBudget,
        inbound: Inbound,
        api: Api,
    ) -> ClientStream<Inbound> {
        connection.set_budget(api.budget(budget));
        if *api.principal() != Principal::Anonymous || !api.is_enforced() {
            connection.set_authenticated();
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
            permit_state: PermitState::NotNeeded,
        }
    }
}

impl<Inbound, E> ClientStream<Inbound>
where
    Inbound: Stream<Item = Result<v1::ClientFrame, E>> + Unpin,
{
    /// Carries out operations until there are no more, the turn is over, or the client has to read answers first. `Ready`
    /// means the end of the stream.
    fn poll_operations(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut queued_before = None;
        loop {
            // Checked before each operation: the answers to one frame may exceed the node's memory.
            let queued = match self.connection.intake() {
                Intake::Open { bytes_queued } => bytes_queued,
                Intake::Closed => return Poll::Ready(()),
                Intake::Ending => return Poll::Pending,
                Intake::Behind => {
                    // `poll_frame` yields a frame now, and the next poll continues here.
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

    /// Polls for the permit of the next operation, a read that can take long.
    fn poll_read_permit(&mut self, context: &mut Context<'_>) -> Poll<Option<TurnPermit>> {
        if !matches!(self.permit_state, PermitState::AwaitingRead(_)) {
            self.permit_state =
                self.connection.read_turn().map_or(PermitState::NotNeeded, PermitState::AwaitingRead);
        }
        let PermitState::AwaitingRead(permit) = &mut self.permit_state else { return Poll::Ready(None) };
        let permit = ready!(permit.as_mut().poll(context));
        self.permit_state = PermitState::NotNeeded;
        Poll::Ready(Some(permit))
    }

    /// Polls for the next turn of a stream that has used up its last one.
    fn poll_bulk_permit(&mut self, context: &mut Context<'_>) -> Poll<Option<TurnPermit>> {
        let PermitState::AwaitingBulk(permit) = &mut self.permit_state else { return Poll::Ready(None) };
        let permit = ready!(permit.as_mut().poll(context));
        self.permit_state = PermitState::NotNeeded;
        Poll::Ready(Some(permit))
    }

    /// Counts operations that have to wait. Returns false if they exceed the budget.
    fn charge_pending(&mut self) -> bool {
        if self.pending_charge.is_some() || self.pending.as_slice().is_empty() {
            return true;
        }
        let bytes = decoded_bytes(self.pending.as_slice());
        let fits = bytes <= SMALL_BYTES || self.connection.has_identity_room();
        match fits {
            true => self.pending_charge = self.connection.charge_identity(bytes + TRANSPORT_BYTES),
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
            this.permit_state =
                this.connection.bulk_turn().map_or(PermitState::NotNeeded, PermitState::AwaitingBulk);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Answers are sent even without a permit for further operations.
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
        // Its sessions stay: the client reconnects and attaches to them, or they expire.
        self.connection.close();
        self.api.shared().callers.forget(&self.connection, &self.connection.sessions());
    }
}
