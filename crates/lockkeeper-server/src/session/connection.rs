//! The outgoing half of a client's stream. Everything that is queued when the client can receive goes into one frame.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_api::{ReplyShape, v1};
use lockkeeper_core::{Freed, Grant, LockName, SessionEnd, SessionId, Token};
use prost::Message;
use tokio::task::JoinSet;

use crate::api::{Api, WeakApi};
use crate::failure::{Failure, Outcome};
use crate::limits::budget::{ByteBudget, Charge};
use crate::limits::turns::TurnPermit;
use crate::security::disclosure;

/// Most answers and events in one frame, so that one message stays below what a client accepts.
const ITEMS_PER_FRAME_MAX: usize = 4_096;
/// Size at which a frame is closed. gRPC clients accept 4 MiB by default.
const FRAME_BYTES_MAX: usize = 2 << 20;
/// Unread answers and events of one stream, in bytes. Above it, none of its operations is carried out until the client has
/// read (S11). One answer can exceed it, and so can answers of operations that were already in the log.
const QUEUED_BYTES_MAX: usize = FRAME_BYTES_MAX;
/// Most unanswered operations of one stream (S11).
const OPERATIONS_OPEN_MAX: usize = 100_000;

/// A future that resolves to this stream's turn for long work.
pub(crate) type AwaitedPermit = Pin<Box<dyn Future<Output = TurnPermit> + Send>>;

/// A client's stream.
#[derive(Debug, Default)]
pub struct Connection {
    inner: Mutex<Inner>,
    /// The client's principal, for checking its current rights when something is pushed. None until it is set; then nothing
    /// is disclosed.
    viewer: Mutex<Option<WeakApi>>,
    /// Counts what the stream keeps. Replaced when the client authenticates.
    budget: Mutex<Option<ByteBudget>>,
    /// Operations that wait for a change. They end with the stream.
    waiting: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Inner {
    answers: Queue<v1::Answer>,
    events: Queue<v1::Event>,
    open: usize,
    /// Counts the queues in the budget.
    charge: Option<Charge>,
    sessions: BTreeSet<SessionId>,
    closed: bool,
    /// Nothing more is read. The stream closes once everything queued is written.
    ending: bool,
    /// Authenticated, or authentication is off.
    authenticated: bool,
    waker: Option<Waker>,
}

/// Whether a stream's next operation may be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// Yes.
    Open {
        /// Size of the unread answers and events.
        bytes_queued: usize,
    },
    /// Not before the client has read answers.
    Behind,
    /// No: nothing more is read, but what is queued is still written.
    Ending,
    /// No: the node has closed the stream.
    Closed,
}

impl Connection {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation that waits for a change, until it is done or the stream is closed.
    pub(crate) fn spawn(&self, operation: impl Future<Output = ()> + Send + 'static) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.try_join_next().is_some() {}
        if !self.is_closed() {
            waiting.spawn(operation);
        }
    }

    /// Marks the client as authenticated, or authentication as off.
    pub fn set_authenticated(&self) {
        self.inner().authenticated = true;
    }

    /// Sets the client's principal.
    pub(crate) fn set_viewer(&self, api: &Api) {
        *self.viewer.lock().unwrap_or_else(PoisonError::into_inner) = Some(api.downgrade());
    }

    /// Sets the budget that counts what the stream keeps.
    pub(crate) fn set_budget(&self, budget: ByteBudget) {
        let mut inner = self.inner();
        inner.charge = Some(budget.charge(inner.answers.bytes + inner.events.bytes));
        drop(inner);
        *self.budget.lock().unwrap_or_else(PoisonError::into_inner) = Some(budget);
    }

    fn budget(&self) -> Option<ByteBudget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses a read while the client is above its budget: the answer may be large.
    pub(crate) fn check_read(&self) -> Result<(), Failure> {
        self.budget().map_or(Ok(()), |budget| budget.check_read())
    }

    /// Counts a frame that is being written.
    pub(crate) fn charge(&self, bytes: usize) -> Option<Charge> {
        self.budget().map(|budget| budget.charge(bytes))
    }

    /// Counts bytes in the budget of the client's identity only: one connection has its own bound on them, and reading
    /// answers does not free them.
    pub(crate) fn charge_identity(&self, bytes: usize) -> Option<Charge> {
        self.budget().map(|budget| budget.charge_identity(bytes))
    }

    /// Whether the client's identity may send large requests.
    pub(crate) fn has_identity_room(&self) -> bool {
        self.budget().is_none_or(|budget| budget.has_identity_room())
    }

    /// Waits for the turn of a read whose cost grows with the table.
    pub(crate) fn read_turn(&self) -> Option<AwaitedPermit> {
        self.budget().map(|budget| Box::pin(budget.read_turn()) as _)
    }

    /// Waits for the next turn of a stream that has used up its last one.
    pub(crate) fn bulk_turn(&self) -> Option<AwaitedPermit> {
        self.budget().map(|budget| Box::pin(budget.bulk_turn()) as _)
    }

    fn viewer(&self) -> Option<Api> {
        self.viewer.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }

    fn disclose(&self, failure: Failure) -> Failure {
        match self.viewer() {
            Some(viewer) => viewer.disclose(failure),
            None => disclosure::disclose_nothing(failure),
        }
    }

    /// Checks that the client may still receive a grant that it has waited for.
    pub(crate) fn check_may_receive(&self, grant: &Grant) -> Result<(), Failure> {
        self.viewer().map_or(Ok(()), |viewer| viewer.check_may_receive(grant))
    }

    /// Whether the client is authenticated, or authentication is off.
    pub fn is_authenticated(&self) -> bool {
        self.inner().authenticated
    }

    /// Counts an operation that arrived. Returns false if too many are unanswered.
    pub fn begin_operation(&self) -> bool {
        let mut inner = self.inner();
        inner.open += 1;
        inner.open <= OPERATIONS_OPEN_MAX
    }

    /// Answers an operation.
    pub fn answer(&self, id: u64, shape: &ReplyShape, outcome: Outcome) {
        match outcome {
            Ok(reply) => match shape.answer(reply) {
                Ok(answer) => self.send(id, answer),
                Err(wrong) => self.fail(id, wrong.into()),
            },
            Err(failure) => self.fail(id, failure),
        }
    }

    /// Answers an operation with a failure.
    pub fn fail(&self, id: u64, failure: Failure) {
        self.send(id, v1::answer::Kind::Error(wire_error(&self.disclose(failure))));
    }

    /// Answers an operation with a message.
    pub fn send(&self, id: u64, kind: v1::answer::Kind) {
        let mut inner = self.inner();
        inner.open = inner.open.saturating_sub(1);
        if !inner.closed {
            let bytes = inner.answers.push(v1::Answer { id, kind: Some(kind) });
            inner.count(bytes);
            inner.wake();
        }
    }

    /// Whether the next operation may be carried out.
    pub fn intake(&self) -> Intake {
        let inner = self.inner();
        let bytes_queued = inner.answers.bytes + inner.events.bytes;
        if inner.closed {
            Intake::Closed
        } else if inner.ending {
            Intake::Ending
        } else if inner.answers.items.len() >= ITEMS_PER_FRAME_MAX || bytes_queued >= QUEUED_BYTES_MAX {
            Intake::Behind
        } else {
            Intake::Open { bytes_queued }
        }
    }

    /// Sends the id of this node.
    pub fn welcome(&self, node_id: u64) {
        self.push(v1::event::Kind::Welcome(v1::Welcome { node_id }));
    }

    /// Notifies the client that one of its sessions has ended.
    pub fn session_ended(&self, session: SessionId, why: SessionEnd) {
        self.inner().sessions.remove(&session);
        let event = v1::SessionEnded { session: session.to_string(), why: why.as_str().to_owned() };
        self.push(v1::event::Kind::SessionEnded(event));
    }

    /// Notifies the client that it has lost a grant.
    pub fn grant_lost(&self, session: SessionId, lock: &LockName, token: Token, why: Freed) {
        let event = v1::GrantLost {
            session: session.to_string(),
            lock: lock.to_string(),
            token: token.0,
            why: why.as_str().to_owned(),
        };
        self.push(v1::event::Kind::GrantLost(event));
    }

    fn push(&self, kind: v1::event::Kind) {
        // A client whose credentials were revoked gets no more events; its next operation is refused.
        if self.is_authenticated() && self.viewer().is_some_and(|viewer| !viewer.is_authenticated()) {
            return self.end();
        }
        let mut inner = self.inner();
        if !inner.closed {
            let bytes = inner.events.push(v1::Event { kind: Some(kind) });
            inner.count(bytes);
            inner.wake();
        }
    }

    /// Adds a session that is attached to this stream.
    pub fn add_session(&self, session: SessionId) {
        self.inner().sessions.insert(session);
    }

    /// Returns the sessions attached to this stream.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.inner().sessions.iter().copied().collect()
    }

    /// Closes the stream at once: nothing more is read or written.
    pub fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        inner.answers = Queue::default();
        inner.events = Queue::default();
        inner.charge = None;
        inner.wake();
        drop(inner);
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        drop(waiting);
    }

    /// Closes the stream once everything queued is written. Nothing more is read.
    pub fn end(&self) {
        let mut inner = self.inner();
        inner.ending = true;
        inner.wake();
    }

    /// Whether the node has closed the stream.
    pub fn is_closed(&self) -> bool {
        self.inner().closed
    }

    /// Polls for the next frame; `None` when the stream is closed.
    pub fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<v1::ServerFrame>> {
        let mut inner = self.inner();
        if inner.closed {
            return Poll::Ready(None);
        }
        if inner.answers.items.is_empty() && inner.events.items.is_empty() {
            if inner.ending {
                inner.closed = true;
                return Poll::Ready(None);
            }
            match &inner.waker {
                Some(waker) if waker.will_wake(context.waker()) => {}
                _ => inner.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let before = inner.answers.bytes + inner.events.bytes;
        let mut room = FRAME_BYTES_MAX;
        let answers = inner.answers.take_some(&mut room);
        // An event may refer to an answer that is still queued, and must not overtake it.
        let events = match inner.answers.items.is_empty() {
            true => inner.events.take_some(&mut room),
            false => Vec::new(),
        };
        let taken = before - inner.answers.bytes - inner.events.bytes;
        if let Some(charge) = &mut inner.charge {
            charge.shrink(taken);
        }
        Poll::Ready(Some(v1::ServerFrame { answers, events }))
    }
}

fn wire_error(failure: &Failure) -> v1::Error {
    lockkeeper_api::Error::from(failure).into()
}

impl Inner {
    fn count(&mut self, bytes: usize) {
        if let Some(charge) = &mut self.charge {
            charge.grow(bytes);
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Queued messages.
#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<T>,
    /// The size of each, in the same order.
    sizes: VecDeque<usize>,
    /// The sum of the sizes.
    bytes: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { items: VecDeque::new(), sizes: VecDeque::new(), bytes: 0 }
    }
}

impl<T: Message> Queue<T> {
    /// Queues a message and returns its size.
    fn push(&mut self, item: T) -> usize {
        // Includes its tag and length.
        let size = item.encoded_len() + 8;
        self.bytes += size;
        self.sizes.push_back(size);
        self.items.push_back(item);
        size
    }

    /// Takes as many as fit into the frame, at least one if there is one.
    fn take_some(&mut self, room: &mut usize) -> Vec<T> {
        let mut count = 0;
        for size in self.sizes.iter().take(ITEMS_PER_FRAME_MAX) {
            if count > 0 && *size > *room {
                break;
            }
            *room = room.saturating_sub(*size);
            count += 1;
        }
        self.bytes -= self.sizes.drain(..count).sum::<usize>();
        // Costs only what is taken: the rest of a long queue is not moved for each frame.
        match count == self.items.len() {
            true => std::mem::take(&mut self.items).into(),
            false => self.items.drain(..count).collect(),
        }
    }
}
