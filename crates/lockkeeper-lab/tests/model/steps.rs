//! The transitions and properties of the model. A paused process takes no steps while its clock advances. Every run contains
//! that, so it needs no transition of its own.

use stateright::{Model, Property};

use super::protocol::{DRIFT, FAST, PROMISE, Protocol, SLOW, TTL};
use super::state::{CLIENTS, LeaderTerm, NODES, Renewal, SessionState, State};

/// A transition. Each clock reading has the worst value for safety: `SLOW` where a promise is given or a proof is checked,
/// `FAST` where a message is sent or a time is awaited. Any other reading only makes a deadline earlier or an expiry later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// Time advances by a tick.
    Tick,
    /// A leader sends a heartbeat.
    Heartbeat { leader: usize },
    /// A follower receives it, and the leader gets the answer at once: a later answer would only be safer.
    Heard { leader: usize, follower: usize },
    /// A node is elected with its own vote and another one.
    Elected { node: usize, voter: usize },
    /// A node loses its memory.
    Restart { node: usize },
    /// A client sends a renewal.
    SendRenewal { client: usize },
    /// A node that believes it leads acknowledges it.
    Answer { node: usize, client: usize },
    /// The client receives the answer.
    ReceiveAnswer { client: usize },
    /// The lock is granted through the log, and the client knows at once: a later answer would only be safer.
    Grant { leader: usize, client: usize },
    /// A node that believes it leads decides to expire a session.
    Decide { node: usize, client: usize },
    /// The expiry is applied through the log.
    Expire { leader: usize, client: usize },
}

pub(crate) const ONE_HOLDER: &str = "never two clients that are certain of the lock";
pub(crate) const TOKENS_RISE: &str = "tokens rise";
pub(crate) const NO_STALE_EXPIRY: &str =
    "no session is ended by an expiry that was decided before its last renewal";
pub(crate) const FAIL_OVER: &str = "a leader is replaced while a client is certain of the lock";
pub(crate) const LOCK_IS_PASSED_ON: &str = "the lock passes on when a session has expired";
pub(crate) const KEPT: &str = "a client keeps its lock through two fail-overs";

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::initial(self.client_drift)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for client in 0..CLIENTS {
            steps.push(Step::SendRenewal { client });
            steps.push(Step::ReceiveAnswer { client });
        }
        for node in 0..NODES {
            if self.restarts {
                steps.push(Step::Restart { node });
            }
            for voter in (0..NODES).filter(|voter| *voter != node) {
                steps.push(Step::Elected { node, voter });
            }
            if state.nodes[node].leadership.is_none() {
                continue;
            }
            // Without a quorum lease, heartbeats have no effect.
            if self.quorum_lease {
                steps.push(Step::Heartbeat { leader: node });
                for follower in (0..NODES).filter(|follower| *follower != node) {
                    steps.push(Step::Heard { leader: node, follower });
                }
            }
            for client in 0..CLIENTS {
                steps.push(Step::Answer { node, client });
                steps.push(Step::Grant { leader: node, client });
                steps.push(Step::Decide { node, client });
                steps.push(Step::Expire { leader: node, client });
            }
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.tick(),
            Step::Heartbeat { leader } => {
                let leadership = next.nodes[leader].leadership.as_mut()?;
                leadership.heartbeat = Some(FAST);
            }
            Step::Heard { leader, follower } => self.heard(&mut next, leader, follower)?,
            Step::Elected { node, voter } => self.elected(&mut next, node, voter)?,
            Step::Restart { node } => {
                let node = &mut next.nodes[node];
                node.leadership = None;
                node.queue = Default::default();
                node.promised_until = if self.promise_survives_restart { SLOW + PROMISE } else { 0 };
            }
            Step::SendRenewal { client } => next.clients[client].renewal = Renewal::Sent(FAST),
            Step::Answer { node, client } => self.answer(&mut next, node, client)?,
            Step::ReceiveAnswer { client } => self.receive_answer(&mut next, client)?,
            Step::Grant { leader, client } => self.grant(&mut next, leader, client)?,
            Step::Decide { node, client } => {
                let version = next.table.version[client];
                let node = &mut next.nodes[node];
                let session_state = &mut node.leadership.as_mut()?.sessions[client];
                if !matches!(*session_state, SessionState::DueAt(due) if due <= FAST) {
                    return None;
                }
                *session_state = SessionState::Expiring;
                node.queue[client] = Some(version);
            }
            Step::Expire { leader, client } => self.expire(&mut next, leader, client)?,
        }
        next.simplify(self);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        let mut properties = vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                state.clients.iter().filter(|client| client.is_certain()).count() <= 1
            }),
            Property::always(TOKENS_RISE, |_, state: &State| !state.observations.token_went_back),
            Property::always(NO_STALE_EXPIRY, |_, state: &State| !state.observations.ended_by_stale_expiry),
            Property::sometimes(FAIL_OVER, |_, state: &State| state.observations.fail_over_with_live_lease),
            Property::sometimes(LOCK_IS_PASSED_ON, |_, state: &State| {
                let [one, other] = &state.clients;
                one.granted && other.granted && (one.is_certain() || other.is_certain())
            }),
        ];
        if self.terms_max == 3 {
            properties.push(Property::sometimes(KEPT, |_, state: &State| {
                let held = state.clients.iter().any(|client| client.is_certain());
                state.term == 3
                    && state.table.last_token == 1
                    && state.observations.fail_over_with_live_lease
                    && held
            }));
        }
        properties
    }
}

impl Protocol {
    fn heard(&self, next: &mut State, leader: usize, follower: usize) -> Option<()> {
        let (term, sent) = {
            let leadership = next.nodes[leader].leadership.as_ref()?;
            (leadership.term, leadership.heartbeat?)
        };
        let node = &mut next.nodes[follower];
        if node.term > term {
            return None;
        }
        node.term = term;
        node.promised_until = SLOW + PROMISE;
        node.step_down(self);
        let leadership = next.nodes[leader].leadership.as_mut()?;
        leadership.acknowledged_since = leadership.acknowledged_since.max(Some(sent));
        Some(())
    }

    /// Both nodes have voted in a new term, so they ignore leaders of older terms. All earlier entries are applied before the
    /// new leader serves, which the model does at once.
    fn elected(&self, next: &mut State, node: usize, voter: usize) -> Option<()> {
        if next.term == self.terms_max
            || [node, voter].iter().any(|one| next.nodes[*one].promised_until > FAST)
        {
            return None;
        }
        next.term += 1;
        for one in [node, voter] {
            next.nodes[one].step_down(self);
            next.nodes[one].term = next.term;
        }
        let due = SLOW + self.ttl_from_new_leader;
        next.nodes[node].leadership = Some(LeaderTerm::new(next.term, next.table.alive, due));
        next.observations.fail_over_with_live_lease |= next.clients.iter().any(|client| client.is_certain());
        Some(())
    }

    fn answer(&self, next: &mut State, node: usize, client: usize) -> Option<()> {
        let Renewal::Sent(sent) = next.clients[client].renewal else { return None };
        let leadership = next.nodes[node].leadership.as_mut()?;
        let has_quorum_lease =
            leadership.acknowledged_since.is_some_and(|since| SLOW - since < PROMISE - DRIFT);
        if self.quorum_lease && !has_quorum_lease {
            return None;
        }
        let SessionState::DueAt(due) = &mut leadership.sessions[client] else { return None };
        *due = SLOW + TTL;
        next.clients[client].renewal = Renewal::Answered(sent);
        Some(())
    }

    fn receive_answer(&self, next: &mut State, client: usize) -> Option<()> {
        let client = &mut next.clients[client];
        let Renewal::Answered(sent) = client.renewal else { return None };
        let counts_from = if self.deadline_from_sending { sent } else { FAST };
        client.deadline = client.deadline.max(counts_from + TTL - self.client_drift);
        client.renewal = Renewal::None;
        Some(())
    }

    /// Whether the node leads in the newest term: only then can it append to the log.
    fn leads(&self, next: &State, node: usize) -> bool {
        next.nodes[node].leadership.as_ref().is_some_and(|leadership| leadership.term == next.term)
    }

    fn grant(&self, next: &mut State, leader: usize, client: usize) -> Option<()> {
        if !self.leads(next, leader) || next.table.holder.is_some() || !next.table.alive[client] {
            return None;
        }
        let leadership = next.nodes[leader].leadership.as_mut()?;
        let token = if self.tokens_in_log {
            next.table.last_token + 1
        } else {
            leadership.tokens += 1;
            leadership.tokens
        };
        next.observations.token_went_back |= token <= next.table.last_token;
        next.table.last_token = token;
        next.table.holder = Some(client);
        next.table.version[client] += 1;
        next.clients[client].granted = true;
        Some(())
    }

    fn expire(&self, next: &mut State, leader: usize, client: usize) -> Option<()> {
        if !self.leads(next, leader) {
            return None;
        }
        let node = &mut next.nodes[leader];
        let decided_at = node.queue[client].take()?;
        let session_state = &mut node.leadership.as_mut()?.sessions[client];
        let table = &mut next.table;
        if !table.alive[client] {
            return Some(());
        }
        let stale = table.version[client] != decided_at;
        if stale && self.version_checked {
            *session_state = SessionState::DueAt(SLOW + TTL);
            return Some(());
        }
        next.observations.ended_by_stale_expiry |= stale;
        *session_state = SessionState::Ended;
        table.alive[client] = false;
        if table.holder == Some(client) {
            table.holder = None;
        }
        Some(())
    }
}
