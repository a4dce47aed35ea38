//! The state of the whole system. All times are relative to now, and past times are equal, so the number of states is finite
//! for runs of any length.

use super::protocol::{DRIFT, FAST, PROMISE, Protocol, SLOW, TTL};

pub(crate) const NODES: usize = 3;
pub(crate) const CLIENTS: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State {
    pub(crate) nodes: [Node; NODES],
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) table: Table,
    /// The highest term with a leader.
    pub(crate) term: u8,
    pub(crate) observations: Observations,
}

/// State of a node on disk and in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) term: u8,
    /// Until when it does not vote, by its own clock.
    pub(crate) promised_until: i8,
    pub(crate) leadership: Option<LeaderTerm>,
    /// Decided expiries that are not in the log yet, with the version that the node saw.
    pub(crate) queue: [Option<u8>; CLIENTS],
}

/// State of a node that believes it leads. It may be wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaderTerm {
    pub(crate) term: u8,
    /// When the heartbeat in flight was sent.
    pub(crate) heartbeat: Option<i8>,
    /// When the last message that a majority acknowledged was sent.
    pub(crate) acknowledged_since: Option<i8>,
    pub(crate) sessions: [SessionState; CLIENTS],
    /// Token counter, if each leader counts tokens by itself.
    pub(crate) tokens: u8,
}

/// A session in the leader's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SessionState {
    DueAt(i8),
    /// An expiry is decided: no renewal is acknowledged any more.
    Expiring,
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client {
    /// End of its certainty, by its own clock.
    pub(crate) deadline: i8,
    /// Whether it was granted the lock. It never releases.
    pub(crate) granted: bool,
    pub(crate) renewal: Renewal,
}

/// The renewal in flight, with the time of sending. A lost one is replaced by a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Renewal {
    None,
    Sent(i8),
    Answered(i8),
}

/// The state that the log determines.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Table {
    pub(crate) alive: [bool; CLIENTS],
    /// Rises with every command of the session.
    pub(crate) version: [u8; CLIENTS],
    pub(crate) holder: Option<usize>,
    pub(crate) last_token: u8,
}

/// Observations of the run, for the properties.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Observations {
    /// A leader was elected while a client was certain of its lock.
    pub(crate) fail_over_with_live_lease: bool,
    /// A token was not higher than the previous one.
    pub(crate) token_went_back: bool,
    /// A session was ended by an expiry that was decided before its last renewal.
    pub(crate) ended_by_stale_expiry: bool,
}

impl Node {
    pub(crate) fn step_down(&mut self, protocol: &Protocol) {
        if self.leadership.take().is_some() && protocol.queue_ends_with_term {
            self.queue = Default::default();
        }
    }
}

impl Client {
    /// Whether it is certain, by its own clock, to hold the lock.
    pub(crate) fn is_certain(&self) -> bool {
        self.granted && SLOW < self.deadline
    }
}

impl State {
    /// The initial state: both sessions are open on the first leader, which has sent no heartbeat yet.
    pub(crate) fn initial(client_drift: i8) -> State {
        let client = Client { deadline: TTL - client_drift, granted: false, renewal: Renewal::None };
        let mut nodes: [Node; NODES] = Default::default();
        nodes[0].leadership = Some(LeaderTerm::new(1, [true; CLIENTS], TTL));
        for node in &mut nodes {
            node.term = 1;
        }
        State {
            nodes,
            clients: [client.clone(), client],
            table: Table { alive: [true; CLIENTS], ..Table::default() },
            term: 1,
            observations: Observations::default(),
        }
    }

    /// Advances the time by a tick.
    pub(crate) fn tick(&mut self) {
        for node in &mut self.nodes {
            node.promised_until -= 1;
            let Some(leadership) = &mut node.leadership else { continue };
            leadership.heartbeat = leadership.heartbeat.map(|at| at - 1);
            leadership.acknowledged_since = leadership.acknowledged_since.map(|at| at - 1);
            for session in &mut leadership.sessions {
                if let SessionState::DueAt(due) = session {
                    *due -= 1;
                }
            }
        }
        for client in &mut self.clients {
            client.deadline -= 1;
            client.renewal = match client.renewal {
                Renewal::None => Renewal::None,
                Renewal::Sent(at) => Renewal::Sent((at - 1).max(-TTL)),
                Renewal::Answered(at) => Renewal::Answered((at - 1).max(-TTL)),
            };
        }
    }

    /// Normalizes the state: drops information without consequences, and merges states that differ only by a permutation of
    /// nodes or clients. This reduces the number of states by a factor of twenty.
    pub(crate) fn simplify(&mut self, protocol: &Protocol) {
        for node in &mut self.nodes {
            node.promised_until = clamp_past(FAST, node.promised_until);
            let Some(leadership) = &mut node.leadership else { continue };
            for session in &mut leadership.sessions {
                if let SessionState::DueAt(due) = session {
                    *due = clamp_past(FAST, *due);
                }
            }
            let is_proof = |at: &i8| SLOW - at < PROMISE - DRIFT;
            leadership.heartbeat = leadership.heartbeat.filter(is_proof);
            leadership.acknowledged_since = leadership.acknowledged_since.filter(is_proof);
            // A replaced leader without a quorum lease answers no request and appends nothing.
            if leadership.term < self.term && leadership.acknowledged_since.is_none() && protocol.quorum_lease
            {
                node.step_down(protocol);
            }
        }
        for client in &mut self.clients {
            client.deadline = clamp_past(SLOW, client.deadline);
            if let Renewal::Sent(at) | Renewal::Answered(at) = client.renewal
                && protocol.deadline_from_sending
                && at + TTL - protocol.client_drift <= SLOW
            {
                client.renewal = Renewal::None;
            }
        }
        self.nodes.sort_unstable();
        let mut swapped = self.clone();
        swapped.swap_clients();
        if swapped < *self {
            *self = swapped;
        }
    }

    fn swap_clients(&mut self) {
        self.clients.swap(0, 1);
        self.table.alive.swap(0, 1);
        self.table.version.swap(0, 1);
        self.table.holder = self.table.holder.map(|holder| 1 - holder);
        for node in &mut self.nodes {
            node.queue.swap(0, 1);
            if let Some(leadership) = &mut node.leadership {
                leadership.sessions.swap(0, 1);
            }
        }
        self.nodes.sort_unstable();
    }
}

/// Maps all times that every process considers past to 0.
fn clamp_past(past: i8, moment: i8) -> i8 {
    if moment <= past { 0 } else { moment }
}

impl LeaderTerm {
    pub(crate) fn new(term: u8, alive: [bool; CLIENTS], due: i8) -> LeaderTerm {
        let session_state = |alive| if alive { SessionState::DueAt(due) } else { SessionState::Ended };
        LeaderTerm {
            term,
            heartbeat: None,
            acknowledged_since: None,
            sessions: alive.map(session_state),
            tokens: 0,
        }
    }
}
