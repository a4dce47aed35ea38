//! One moment of the whole system. All times count from now, and what is over is over: so there are finitely many
//! states, however long it runs.

use super::protocol::{DRIFT, FAST, PROMISE, Protocol, SLOW, TTL};

pub(crate) const NODES: usize = 3;
pub(crate) const CLIENTS: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State {
    pub(crate) nodes: [Node; NODES],
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) table: Table,
    /// The highest term in which somebody leads.
    pub(crate) term: u8,
    pub(crate) seen: Seen,
}

/// What is on disk or in the memory of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) term: u8,
    /// By its own clock: until then it votes for nobody.
    pub(crate) promised_until: i8,
    pub(crate) office: Option<Office>,
    /// Expiries that are decided and not in the log yet, with the version that the node saw.
    pub(crate) queue: [Option<u8>; CLIENTS],
}

/// What a node knows while it believes to lead. It may be wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Office {
    pub(crate) term: u8,
    /// When the heartbeat was sent that is on its way.
    pub(crate) heartbeat: Option<i8>,
    /// When the last message was sent that a majority has acknowledged.
    pub(crate) heard_since: Option<i8>,
    pub(crate) sessions: [Lifeline; CLIENTS],
    /// Only where tokens are counted by the leader.
    pub(crate) tokens: u8,
}

/// A session in the leader's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lifeline {
    DueAt(i8),
    /// No renewal is acknowledged any more.
    Expiring,
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client {
    /// By its own clock: from then on it is sure of nothing.
    pub(crate) deadline: i8,
    /// It was granted the lock, and has never given it back.
    pub(crate) granted: bool,
    pub(crate) renewal: Renewal,
}

/// The renewal on its way, with the moment at which the client sent it. It can get lost: then it is sent anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Renewal {
    None,
    Asked(i8),
    Answered(i8),
}

/// What the log has decided.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Table {
    pub(crate) alive: [bool; CLIENTS],
    /// Rises with every command in the session's name.
    pub(crate) version: [u8; CLIENTS],
    pub(crate) holder: Option<usize>,
    pub(crate) last_token: u8,
}

/// What happened on the way, for the properties.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Seen {
    /// A new leader came while a client was sure of its lock.
    pub(crate) fail_over_with_live_lease: bool,
    /// A token was not higher than the one before.
    pub(crate) token_went_back: bool,
    /// A session was ended by an expiry that was decided before it was last heard of.
    pub(crate) ended_by_stale_expiry: bool,
}

impl Node {
    pub(crate) fn leave_office(&mut self, protocol: &Protocol) {
        if self.office.take().is_some() && protocol.queue_ends_with_office {
            self.queue = Default::default();
        }
    }
}

impl Client {
    /// Whether it may believe, by its own clock, that the lock is its own.
    pub(crate) fn is_sure(&self) -> bool {
        self.granted && SLOW < self.deadline
    }
}

impl State {
    /// Both sessions have just been opened on the first leader, whom nobody else has heard yet.
    pub(crate) fn first(client_drift: i8) -> State {
        let client = Client { deadline: TTL - client_drift, granted: false, renewal: Renewal::None };
        let mut nodes: [Node; NODES] = Default::default();
        nodes[0].office = Some(Office::new(1, [true; CLIENTS], TTL));
        for node in &mut nodes {
            node.term = 1;
        }
        State {
            nodes,
            clients: [client.clone(), client],
            table: Table { alive: [true; CLIENTS], ..Table::default() },
            term: 1,
            seen: Seen::default(),
        }
    }

    /// An hour passes for everybody.
    pub(crate) fn tick(&mut self) {
        for node in &mut self.nodes {
            node.promised_until -= 1;
            let Some(office) = &mut node.office else { continue };
            office.heartbeat = office.heartbeat.map(|at| at - 1);
            office.heard_since = office.heard_since.map(|at| at - 1);
            for session in &mut office.sessions {
                if let Lifeline::DueAt(due) = session {
                    *due -= 1;
                }
            }
        }
        for client in &mut self.clients {
            client.deadline -= 1;
            client.renewal = match client.renewal {
                Renewal::None => Renewal::None,
                Renewal::Asked(at) => Renewal::Asked((at - 1).max(-TTL)),
                Renewal::Answered(at) => Renewal::Answered((at - 1).max(-TTL)),
            };
        }
    }

    /// Forgets what can have no consequence any more, and gives states the same form that differ only by which node
    /// is which, or which client is which. Without it there were twenty times as many.
    pub(crate) fn simplify(&mut self, protocol: &Protocol) {
        for node in &mut self.nodes {
            node.promised_until = over_at(FAST, node.promised_until);
            let Some(office) = &mut node.office else { continue };
            for session in &mut office.sessions {
                if let Lifeline::DueAt(due) = session {
                    *due = over_at(FAST, *due);
                }
            }
            let proves = |at: &i8| SLOW - at < PROMISE - DRIFT;
            office.heartbeat = office.heartbeat.filter(proves);
            office.heard_since = office.heard_since.filter(proves);
            // A leader that was replaced and can prove nothing answers nobody, and no log takes anything from it.
            if office.term < self.term && office.heard_since.is_none() && protocol.quorum_lease {
                node.leave_office(protocol);
            }
        }
        for client in &mut self.clients {
            client.deadline = over_at(SLOW, client.deadline);
            if let Renewal::Asked(at) | Renewal::Answered(at) = client.renewal
                && protocol.counted_from_sending
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
            if let Some(office) = &mut node.office {
                office.sessions.swap(0, 1);
            }
        }
        self.nodes.sort_unstable();
    }
}

/// A moment that anybody may take for past is past.
fn over_at(past: i8, moment: i8) -> i8 {
    if moment <= past { 0 } else { moment }
}

impl Office {
    pub(crate) fn new(term: u8, alive: [bool; CLIENTS], due: i8) -> Office {
        let lifeline = |alive| if alive { Lifeline::DueAt(due) } else { Lifeline::Ended };
        Office { term, heartbeat: None, heard_since: None, sessions: alive.map(lifeline), tokens: 0 }
    }
}
