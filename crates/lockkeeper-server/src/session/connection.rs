//! The outgoing half of a client's stream: whatever has gathered when the client can take a frame goes into
//! that one frame.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_core::{LockName, SessionEnd, SessionId, Token};
use lockkeeper_proto::v1;

use crate::failure::{Failure, Outcome};
use crate::wire;

/// Most answers and events in one frame, so that one message stays below what a client accepts.
const ITEMS_PER_FRAME_MAX: usize = 4_096;
/// Most operations of one stream that wait for their answer (S11).
pub const OPERATIONS_OPEN_MAX: usize = 100_000;

/// A client's stream.
#[derive(Debug, Default)]
pub struct Connection {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    answers: Vec<v1::Answer>,
    events: Vec<v1::Event>,
    open: usize,
    sessions: Vec<SessionId>,
    closed: bool,
    waker: Option<Waker>,
}

impl Connection {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation has come in. False if too many wait for their answer already.
    pub fn begin(&self) -> bool {
        let mut inner = self.inner();
        inner.open += 1;
        inner.open <= OPERATIONS_OPEN_MAX
    }

    /// Answers an operation.
    pub fn answer(&self, id: u64, opens: Option<SessionId>, outcome: Outcome) {
        self.send(id, wire::answer(opens, outcome));
    }

    /// Answers an operation with a failure.
    pub fn fail(&self, id: u64, failure: &Failure) {
        self.send(id, v1::answer::Kind::Error(failure.to_wire()));
    }

    /// Answers an operation with this.
    pub fn send(&self, id: u64, kind: v1::answer::Kind) {
        let mut inner = self.inner();
        inner.open = inner.open.saturating_sub(1);
        if !inner.closed {
            inner.answers.push(v1::Answer { id, kind: Some(kind) });
            inner.wake();
        }
    }

    /// The client learns that one of its sessions has ended.
    pub fn session_ended(&self, session: SessionId, why: SessionEnd) {
        let why = match why {
            SessionEnd::Closed => "closed",
            SessionEnd::Expired => "expired",
        };
        let event = v1::SessionEnded { session: session.to_string(), why: why.to_owned() };
        self.push(v1::event::Kind::SessionEnded(event));
    }

    /// The client learns that one of its grants was taken away.
    pub fn grant_lost(&self, session: SessionId, lock: &LockName, token: Token, why: &str) {
        let event = v1::GrantLost {
            session: session.to_string(),
            lock: lock.to_string(),
            token: token.0,
            why: why.to_owned(),
        };
        self.push(v1::event::Kind::GrantLost(event));
    }

    fn push(&self, kind: v1::event::Kind) {
        let mut inner = self.inner();
        if !inner.closed {
            inner.events.push(v1::Event { kind: Some(kind) });
            inner.wake();
        }
    }

    /// Remembers that this stream speaks for a session.
    pub fn speaks_for(&self, session: SessionId) {
        let mut inner = self.inner();
        if !inner.sessions.contains(&session) {
            inner.sessions.push(session);
        }
    }

    /// The sessions it speaks for.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.inner().sessions.clone()
    }

    /// Ends the stream: nothing more is read from it or written to it.
    pub fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        inner.answers = Vec::new();
        inner.events = Vec::new();
        inner.wake();
    }

    /// Whether it was ended from this side.
    pub fn is_closed(&self) -> bool {
        self.inner().closed
    }

    /// The next frame; `None` when the stream was ended.
    pub fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<v1::ServerFrame>> {
        let mut inner = self.inner();
        if inner.closed {
            return Poll::Ready(None);
        }
        if inner.answers.is_empty() && inner.events.is_empty() {
            match &inner.waker {
                Some(waker) if waker.will_wake(context.waker()) => {}
                _ => inner.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let answers = take_some(&mut inner.answers);
        let events = take_some(&mut inner.events);
        Poll::Ready(Some(v1::ServerFrame { answers, events }))
    }
}

impl Inner {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn take_some<T>(items: &mut Vec<T>) -> Vec<T> {
    if items.len() <= ITEMS_PER_FRAME_MAX {
        return std::mem::take(items);
    }
    let rest = items.split_off(ITEMS_PER_FRAME_MAX);
    std::mem::replace(items, rest)
}
