//! Callers that wait for an answer on this node, and the streams that receive the events of a session.
//!
//! Only the process that proposed an entry has callers for its answers. A caller whose request is queued
//! stays here under its ticket until the lock table grants the request or ends its wait.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_api::ReplyShape;
use lockkeeper_core::{Answer, Reply, SessionId, Ticket};
use tokio::sync::oneshot;

use crate::failure::{Failure, Outcome};
use crate::session::connection::Connection;
use crate::trace::TracedCaller;

/// Where an answer goes.
#[derive(Debug)]
pub enum Caller {
    /// A single call (HTTP, unary gRPC).
    Call(oneshot::Sender<Outcome>),
    /// An operation on a stream.
    Stream {
        /// The stream.
        connection: Arc<Connection>,
        /// The operation's id on that stream.
        id: u64,
        /// What is needed to build its answer.
        shape: ReplyShape,
    },
    /// One of the others, with the spans of its request. Only used while a subscriber collects spans.
    Traced(Box<TracedCaller>),
    /// Nobody: the command comes from the node itself.
    Nobody,
}

impl Caller {
    /// Delivers the outcome. Returns false if the caller has disconnected.
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

    /// Delivers the outcome of a wait. Checks the caller's rights again: they may have been revoked while it waited.
    fn deliver_after_wait(self, outcome: Outcome) -> DeliveryOutcome {
        let stream = match &self {
            Caller::Stream { connection, id, .. } => Some((connection, *id)),
            Caller::Traced(traced) => match &traced.caller {
                Caller::Stream { connection, id, .. } => Some((connection, *id)),
                _ => None,
            },
            // A call checks this itself and releases its grant.
            Caller::Call(_) | Caller::Nobody => None,
        };
        if let (Some((connection, id)), Ok(Reply::Granted(grant))) = (stream, &outcome)
            && let Err(failure) = connection.check_may_receive(grant)
        {
            connection.fail(id, failure);
            return DeliveryOutcome::Refused;
        }
        match self.deliver(outcome) {
            true => DeliveryOutcome::Delivered,
            false => DeliveryOutcome::Gone,
        }
    }

    /// Returns the stream and the session that its operation opens, if it opens one.
    pub(crate) fn opens(&self) -> Option<(&Arc<Connection>, SessionId)> {
        match self {
            Caller::Stream { connection, shape, .. } => shape.opens().map(|session| (connection, session)),
            Caller::Traced(traced) => traced.caller.opens(),
            Caller::Call(_) | Caller::Nobody => None,
        }
    }
}

impl Caller {
    /// Whether the caller can still receive an answer.
    fn is_connected(&self) -> bool {
        steps::count(1);
        match self {
            Caller::Call(sender) => !sender.is_closed(),
            Caller::Stream { connection, .. } => !connection.is_closed(),
            Caller::Traced(traced) => traced.caller.is_connected(),
            Caller::Nobody => false,
        }
    }
}

/// Counts the callers and streams that an operation visits, for the tests of its cost.
mod steps {
    #[cfg(test)]
    thread_local! {
        static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[cfg(test)]
    pub(super) fn count(steps: usize) {
        STEPS.set(STEPS.get() + steps);
    }

    /// The number of steps on this thread since the last call.
    #[cfg(test)]
    pub(super) fn take() -> usize {
        STEPS.take()
    }

    #[cfg(not(test))]
    pub(super) const fn count(_: usize) {}
}

/// Most callers that wait for the same request.
const CALLERS_PER_TICKET_MAX: usize = 32;

/// Whether the end of a wait reached a caller. With several callers, the greatest outcome counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryOutcome {
    /// All callers on this node have disconnected.
    Gone,
    /// The caller no longer has the right to the lock.
    Refused,
    /// The caller received it, or waits on another node.
    Delivered,
}

/// A map with a fixed hash, so that simulations are repeatable. Its keys are not chosen by clients.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// The callers of this node.
#[derive(Debug, Default)]
pub struct Callers {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By sequence number of the proposal: one caller for each of its commands.
    proposed: Map<u64, Vec<Caller>>,
    /// By ticket. Several if a client retried its request while it waited.
    queued: Map<Ticket, Vec<Caller>>,
    /// The stream attached to each session.
    attached: Map<SessionId, Arc<Connection>>,
}

impl Callers {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the callers of a proposal.
    pub fn expect(&self, sequence: u64, callers: Vec<Caller>) {
        self.inner().proposed.insert(sequence, callers);
    }

    /// Removes and returns the callers of a proposal that was applied or has failed.
    pub fn take(&self, sequence: u64) -> Option<Vec<Caller>> {
        self.inner().proposed.remove(&sequence)
    }

    /// Whether any proposal is in flight.
    pub fn has_pending_answers(&self) -> bool {
        !self.inner().proposed.is_empty()
    }

    /// Whether any stream is attached to a session.
    pub fn has_streams(&self) -> bool {
        !self.inner().attached.is_empty()
    }

    /// Answers a caller, or keeps it if its request was queued. Returns false if the caller has disconnected.
    pub fn answer(&self, caller: Caller, answer: Answer) -> bool {
        match answer {
            Ok(Reply::Queued { ticket }) => {
                let mut inner = self.inner();
                let waiting = inner.queued.entry(ticket).or_default();
                // Drops earlier attempts of a client that has reconnected. A client that retries more often than that is
                // answered only on its newest attempts.
                let mut surplus = None;
                if waiting.len() >= CALLERS_PER_TICKET_MAX {
                    waiting.retain(Caller::is_connected);
                    steps::count(waiting.len());
                    surplus = (waiting.len() >= CALLERS_PER_TICKET_MAX).then(|| waiting.remove(0));
                }
                waiting.push(caller);
                drop(inner);
                if let Some(surplus) = surplus {
                    surplus.deliver(Err(Failure::Overload {
                        why: "the request was retried too often while it waits".into(),
                        retry_after_ms: 1_000,
                    }));
                }
                true
            }
            answer => caller.deliver(answer.map_err(Failure::Refused)),
        }
    }

    /// Delivers the outcome of the wait with this ticket.
    pub fn end_wait(&self, ticket: Ticket, outcome: Outcome) -> DeliveryOutcome {
        let Some(callers) = self.inner().queued.remove(&ticket) else { return DeliveryOutcome::Delivered };
        steps::count(callers.len());
        let outcomes = callers.into_iter().map(|caller| caller.deliver_after_wait(outcome.clone()));
        outcomes.max().unwrap_or(DeliveryOutcome::Gone)
    }

    /// Attaches a stream to a session. Closes an older stream, so that operations that are still in its buffers are never
    /// carried out.
    pub fn attach(&self, session: SessionId, connection: &Arc<Connection>) {
        let older = self.inner().attached.insert(session, connection.clone());
        if let Some(older) = older
            && !Arc::ptr_eq(&older, connection)
        {
            older.close();
        }
    }

    /// Returns the stream attached to a session.
    pub fn attached(&self, session: SessionId) -> Option<Arc<Connection>> {
        self.inner().attached.get(&session).cloned()
    }

    /// Removes and returns the stream of a session that has ended.
    pub fn detach(&self, session: SessionId) -> Option<Arc<Connection>> {
        self.inner().attached.remove(&session)
    }

    /// Detaches a closed stream from its sessions, except where a newer stream has replaced it.
    pub fn forget(&self, connection: &Arc<Connection>, sessions: &[SessionId]) {
        let mut inner = self.inner();
        for session in sessions {
            steps::count(1);
            if inner.attached.get(session).is_some_and(|attached| Arc::ptr_eq(attached, connection)) {
                inner.attached.remove(session);
            }
        }
    }

    /// Ends all streams after a loss of leadership, so that clients reconnect to the leader.
    pub fn end_streams(&self) {
        let attached = std::mem::take(&mut self.inner().attached);
        for connection in attached.into_values() {
            steps::count(1);
            connection.end();
        }
    }

    /// Fails all callers after a loss of leadership: what was in flight may or may not be applied under the next leader.
    pub fn fail_all(&self, failure: &Failure) {
        let (proposed, queued) = {
            let mut inner = self.inner();
            (std::mem::take(&mut inner.proposed), std::mem::take(&mut inner.queued))
        };
        for caller in proposed.into_values().chain(queued.into_values()).flatten() {
            steps::count(1);
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
        callers.end_wait(ticket, Ok(Reply::Done));
        for mut answer in newest {
            assert!(matches!(answer.try_recv(), Ok(Ok(Reply::Done))));
        }
    }

    const FEW: u64 = 1_000;

    fn call() -> (Caller, oneshot::Receiver<Outcome>) {
        let (sender, answer) = oneshot::channel();
        (Caller::Call(sender), answer)
    }

    /// Ten times as many cost at most twelve times as many steps.
    #[track_caller]
    fn assert_linear(what: &str, run: impl Fn(u64, &Callers)) {
        let [few, many] = [FEW, 10 * FEW].map(|count| {
            let callers = Callers::default();
            steps::take();
            run(count, &callers);
            steps::take()
        });
        assert!(few as u64 >= FEW / 2, "{what}: only {few} steps: some are not counted");
        assert!(many <= 12 * few, "{what}: {few} steps for {FEW}, {many} for ten times as many");
    }

    #[test]
    fn callers_cost_what_they_contain() {
        assert_linear("one request, repeated", |count, callers| {
            let calls: Vec<_> = (0..count).map(|_| call()).collect();
            let mut answers = Vec::new();
            for (caller, answer) in calls {
                callers.answer(caller, Ok(Reply::Queued { ticket: Ticket(1) }));
                answers.push(answer);
            }
            callers.end_wait(Ticket(1), Ok(Reply::Done));
        });
        assert_linear("many requests that wait", |count, callers| {
            for ticket in 0..count {
                callers.answer(call().0, Ok(Reply::Queued { ticket: Ticket(ticket) }));
            }
            for ticket in 0..count {
                callers.end_wait(Ticket(ticket), Ok(Reply::Done));
            }
        });
        assert_linear("callers of lost entries", |count, callers| {
            for sequence in 0..count / 2 {
                callers.expect(sequence, vec![call().0]);
                callers.answer(call().0, Ok(Reply::Queued { ticket: Ticket(sequence) }));
            }
            callers.fail_all(&Failure::unknown("the leader has changed"));
        });
        assert_linear("sessions of one stream", |count, callers| {
            let connection = Arc::new(Connection::default());
            let sessions: Vec<SessionId> = (0..count).map(|id| SessionId(id.into())).collect();
            sessions.iter().for_each(|session| callers.attach(*session, &connection));
            callers.forget(&connection, &sessions);
            assert!(!callers.has_streams());
        });
        assert_linear("streams that end", |count, callers| {
            for id in 0..count {
                callers.attach(SessionId(id.into()), &Arc::new(Connection::default()));
            }
            callers.end_streams();
        });
    }
}
