//! Who waits for an answer on this node, and who is told what happens to a session.
//!
//! Only the process that proposed an entry has callers for its answers. A caller whose request is queued
//! stays here under its ticket until the grant or the end of the wait comes out of the lock table.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_api::ReplyShape;
use lockkeeper_core::{Answer, Reply, SessionId, Ticket};
use tokio::sync::oneshot;

use crate::failure::{Failure, Outcome};
use crate::session::connection::Connection;
use crate::trace::Traced;

/// Where an answer goes.
#[derive(Debug)]
pub enum Caller {
    /// A call of its own (HTTP, unary gRPC).
    Call(oneshot::Sender<Outcome>),
    /// An operation on a stream.
    Stream {
        /// The stream.
        connection: Arc<Connection>,
        /// The operation's id on that stream.
        id: u64,
        /// What it takes to answer it.
        shape: ReplyShape,
    },
    /// Any of them, with the spans of its request. Only there while somebody collects spans.
    Traced(Box<Traced>),
    /// Nobody: the node itself asked.
    Nobody,
}

impl Caller {
    /// Hands over the outcome. False if the caller has gone and will never come back for it.
    pub fn deliver(self, outcome: Outcome) -> bool {
        match self {
            Caller::Call(sender) => sender.send(outcome).is_ok(),
            Caller::Stream { connection, id, shape } => {
                connection.answer(id, &shape, outcome);
                true
            }
            Caller::Traced(traced) => traced.deliver(outcome),
            Caller::Nobody => true,
        }
    }

    /// Hands over the outcome of a wait. The caller's rights are checked again: they may be gone since it asked.
    fn deliver_late(self, outcome: Outcome) -> Told {
        let stream = match &self {
            Caller::Stream { connection, id, .. } => Some((connection, *id)),
            Caller::Traced(traced) => match &traced.caller {
                Caller::Stream { connection, id, .. } => Some((connection, *id)),
                _ => None,
            },
            // A call checks for itself, and gives its grant back.
            Caller::Call(_) | Caller::Nobody => None,
        };
        if let (Some((connection, id)), Ok(Reply::Granted(grant))) = (stream, &outcome)
            && let Err(failure) = connection.may_receive(grant)
        {
            connection.fail(id, failure);
            return Told::Refused;
        }
        match self.deliver(outcome) {
            true => Told::Yes,
            false => Told::Gone,
        }
    }

    /// The stream and the session that it opens, if it opens one.
    pub(crate) fn opens(&self) -> Option<(&Arc<Connection>, SessionId)> {
        match self {
            Caller::Stream { connection, shape, .. } => shape.opens().map(|session| (connection, session)),
            Caller::Traced(traced) => traced.caller.opens(),
            Caller::Call(_) | Caller::Nobody => None,
        }
    }
}

impl Caller {
    /// Whether anybody is still there to be answered.
    fn is_there(&self) -> bool {
        match self {
            Caller::Call(sender) => !sender.is_closed(),
            Caller::Stream { connection, .. } => !connection.is_closed(),
            Caller::Traced(traced) => traced.caller.is_there(),
            Caller::Nobody => false,
        }
    }
}

/// Most callers that wait for the same request.
const CALLERS_PER_TICKET_MAX: usize = 32;

/// Who has heard of the end of a wait; of several callers, the one who has heard most counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// Somebody waited for it here, and all of them have gone.
    Gone,
    /// The caller no longer has the right to what it waited for.
    Refused,
    /// The caller, or whoever it is on another node.
    Yes,
}

/// Hashed the same way in every process, so that a simulation can be repeated: the keys are numbers of ours.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// The callers of this node.
#[derive(Debug, Default)]
pub struct Callers {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the sequence number of the proposal: one caller for each of its commands.
    proposed: Map<u64, Vec<Caller>>,
    /// By ticket. Several, if a client repeated its request while it waited.
    queued: Map<Ticket, Vec<Caller>>,
    /// The stream that speaks for a session.
    attached: Map<SessionId, Arc<Connection>>,
}

impl Callers {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers who waits for the answers to a proposal.
    pub fn expect(&self, sequence: u64, callers: Vec<Caller>) {
        self.inner().proposed.insert(sequence, callers);
    }

    /// The callers of a proposal that was applied or has failed.
    pub fn take(&self, sequence: u64) -> Option<Vec<Caller>> {
        self.inner().proposed.remove(&sequence)
    }

    /// Whether a proposal is under way of which nobody knows yet what becomes of it.
    pub fn expects_answers(&self) -> bool {
        !self.inner().proposed.is_empty()
    }

    /// Whether any stream speaks for a session here.
    pub fn has_streams(&self) -> bool {
        !self.inner().attached.is_empty()
    }

    /// Answers a caller, or keeps it if its request was queued. False if the caller has gone.
    pub fn answer(&self, caller: Caller, answer: Answer) -> bool {
        match answer {
            Ok(Reply::Queued { ticket }) => {
                let mut inner = self.inner();
                let waiting = inner.queued.entry(ticket).or_default();
                // Earlier tries of a client that has come back on another connection. Whoever repeats a request more
                // often than that is answered by the newest ones.
                let mut surplus = None;
                if waiting.len() >= CALLERS_PER_TICKET_MAX {
                    waiting.retain(Caller::is_there);
                    surplus = (waiting.len() >= CALLERS_PER_TICKET_MAX).then(|| waiting.remove(0));
                }
                waiting.push(caller);
                drop(inner);
                if let Some(surplus) = surplus {
                    surplus.deliver(Err(Failure::Overload {
                        why: "the request was repeated too often while it waits".into(),
                        retry_after_ms: 1_000,
                    }));
                }
                true
            }
            answer => caller.deliver(answer.map_err(Failure::Refused)),
        }
    }

    /// The wait with this ticket is over.
    pub fn wait_over(&self, ticket: Ticket, outcome: Outcome) -> Told {
        let Some(callers) = self.inner().queued.remove(&ticket) else { return Told::Yes };
        let told = callers.into_iter().map(|caller| caller.deliver_late(outcome.clone()));
        told.max().unwrap_or(Told::Gone)
    }

    /// This stream now speaks for the session; an older one is closed, so that nothing that it still has in
    /// its buffers is carried out later.
    pub fn attach(&self, session: SessionId, connection: &Arc<Connection>) {
        let older = self.inner().attached.insert(session, connection.clone());
        if let Some(older) = older
            && !Arc::ptr_eq(&older, connection)
        {
            older.close();
        }
    }

    /// The stream that speaks for a session.
    pub fn attached(&self, session: SessionId) -> Option<Arc<Connection>> {
        self.inner().attached.get(&session).cloned()
    }

    /// The session has ended: nobody speaks for it any more.
    pub fn detach(&self, session: SessionId) -> Option<Arc<Connection>> {
        self.inner().attached.remove(&session)
    }

    /// The stream has gone: forget it, but only where no newer one has taken its place.
    pub fn forget(&self, connection: &Arc<Connection>, sessions: &[SessionId]) {
        let mut inner = self.inner();
        for session in sessions {
            if inner.attached.get(session).is_some_and(|attached| Arc::ptr_eq(attached, connection)) {
                inner.attached.remove(session);
            }
        }
    }

    /// This node no longer leads: its clients go where the leader is.
    pub fn send_away(&self) {
        let attached = std::mem::take(&mut self.inner().attached);
        for connection in attached.into_values() {
            connection.end();
        }
    }

    /// This node no longer leads: whatever was under way may or may not happen under the next leader.
    pub fn fail_all(&self, failure: &Failure) {
        let (proposed, queued) = {
            let mut inner = self.inner();
            (std::mem::take(&mut inner.proposed), std::mem::take(&mut inner.queued))
        };
        for caller in proposed.into_values().chain(queued.into_values()).flatten() {
            caller.deliver(Err(failure.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeating_a_waiting_request_keeps_a_bounded_number_of_callers() {
        let callers = Callers::default();
        let ticket = Ticket(1);
        let mut answers = Vec::new();
        for _ in 0..10 * CALLERS_PER_TICKET_MAX {
            let (sender, answer) = oneshot::channel();
            callers.answer(Caller::Call(sender), Ok(Reply::Queued { ticket }));
            answers.push(answer);
            assert!(callers.inner().queued[&ticket].len() <= CALLERS_PER_TICKET_MAX);
        }
        let newest = answers.split_off(answers.len() - CALLERS_PER_TICKET_MAX);
        for mut answer in answers {
            assert!(matches!(answer.try_recv(), Ok(Err(Failure::Overload { .. }))));
        }
        callers.wait_over(ticket, Ok(Reply::Done));
        for mut answer in newest {
            assert!(matches!(answer.try_recv(), Ok(Ok(Reply::Done))));
        }
    }
}
