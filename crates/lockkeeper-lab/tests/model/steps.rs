//! What can happen next, and what follows from it. A process that is paused is one that takes none of its steps while
//! its clock goes on: every run contains that, so it needs no step of its own.

use stateright::{Model, Property};

use super::protocol::{DRIFT, FAST, PROMISE, Protocol, SLOW, TTL};
use super::state::{CLIENTS, Lifeline, NODES, Office, Renewal, State};

/// Every clock shows what is worst for safety, at each reading anew: `SLOW` where a promise is given or a proof is
/// looked at, `FAST` where something is sent or a moment is waited for. Any other reading would only make a deadline
/// earlier or an expiry later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// An hour passes for everybody.
    Tick,
    /// A leader sends a heartbeat.
    Heartbeat { leader: usize },
    /// A follower hears it, and the leader hears that at once: later would only make it more careful.
    Heard { leader: usize, follower: usize },
    /// A node gets its own vote and another's, and takes office.
    Elected { node: usize, voter: usize },
    /// A node loses its memory.
    Restart { node: usize },
    /// A client asks for a renewal.
    Ask { client: usize },
    /// A node that believes to lead acknowledges it.
    Answer { node: usize, client: usize },
    /// The client reads the answer.
    Learn { client: usize },
    /// The lock is granted through the log, and the client knows at once: later would only make it less sure.
    Grant { leader: usize, client: usize },
    /// A node that believes to lead decides that a session is over.
    Decide { node: usize, client: usize },
    /// That goes through the log.
    Expire { leader: usize, client: usize },
}

pub(crate) const ONE_HOLDER: &str = "never two clients that are sure of the lock";
pub(crate) const TOKENS_RISE: &str = "tokens rise";
pub(crate) const HEARD_OF: &str = "no session is ended by an expiry decided before it was last heard of";
pub(crate) const FAIL_OVER: &str = "a leader is replaced while a client is sure of the lock";
pub(crate) const PASSES_ON: &str = "the lock passes on when a session has expired";
pub(crate) const KEPT: &str = "a client keeps its lock through two fail-overs";

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self.client_drift)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for client in 0..CLIENTS {
            steps.push(Step::Ask { client });
            steps.push(Step::Learn { client });
        }
        for node in 0..NODES {
            if self.restarts {
                steps.push(Step::Restart { node });
            }
            for voter in (0..NODES).filter(|voter| *voter != node) {
                steps.push(Step::Elected { node, voter });
            }
            if state.nodes[node].office.is_none() {
                continue;
            }
            // Where nobody looks at the lease, the runs without heartbeats are enough to find what is wrong.
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
                let office = next.nodes[leader].office.as_mut()?;
                office.heartbeat = Some(FAST);
            }
            Step::Heard { leader, follower } => self.heard(&mut next, leader, follower)?,
            Step::Elected { node, voter } => self.elected(&mut next, node, voter)?,
            Step::Restart { node } => {
                let node = &mut next.nodes[node];
                node.office = None;
                node.queue = Default::default();
                node.promised_until = if self.promise_outlives_restart { SLOW + PROMISE } else { 0 };
            }
            Step::Ask { client } => next.clients[client].renewal = Renewal::Asked(FAST),
            Step::Answer { node, client } => self.answer(&mut next, node, client)?,
            Step::Learn { client } => self.learn(&mut next, client)?,
            Step::Grant { leader, client } => self.grant(&mut next, leader, client)?,
            Step::Decide { node, client } => {
                let version = next.table.version[client];
                let node = &mut next.nodes[node];
                let lifeline = &mut node.office.as_mut()?.sessions[client];
                if !matches!(*lifeline, Lifeline::DueAt(due) if due <= FAST) {
                    return None;
                }
                *lifeline = Lifeline::Expiring;
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
                state.clients.iter().filter(|client| client.is_sure()).count() <= 1
            }),
            Property::always(TOKENS_RISE, |_, state: &State| !state.seen.token_went_back),
            Property::always(HEARD_OF, |_, state: &State| !state.seen.ended_by_stale_expiry),
            Property::sometimes(FAIL_OVER, |_, state: &State| state.seen.fail_over_with_live_lease),
            Property::sometimes(PASSES_ON, |_, state: &State| {
                let [one, other] = &state.clients;
                one.granted && other.granted && (one.is_sure() || other.is_sure())
            }),
        ];
        if self.terms_max == 3 {
            properties.push(Property::sometimes(KEPT, |_, state: &State| {
                let held = state.clients.iter().any(|client| client.is_sure());
                state.term == 3 && state.table.last_token == 1 && state.seen.fail_over_with_live_lease && held
            }));
        }
        properties
    }
}

impl Protocol {
    fn heard(&self, next: &mut State, leader: usize, follower: usize) -> Option<()> {
        let (term, sent) = {
            let office = next.nodes[leader].office.as_ref()?;
            (office.term, office.heartbeat?)
        };
        let node = &mut next.nodes[follower];
        if node.term > term {
            return None;
        }
        node.term = term;
        node.promised_until = SLOW + PROMISE;
        node.leave_office(self);
        let office = next.nodes[leader].office.as_mut()?;
        office.heard_since = office.heard_since.max(Some(sent));
        Some(())
    }

    /// Both have voted in a new term, so from here on neither listens to a leader of an older one. Whatever older
    /// leaders had got into the log is applied before a new one takes office: that is here, at once.
    fn elected(&self, next: &mut State, node: usize, voter: usize) -> Option<()> {
        if next.term == self.terms_max
            || [node, voter].iter().any(|one| next.nodes[*one].promised_until > FAST)
        {
            return None;
        }
        next.term += 1;
        for one in [node, voter] {
            next.nodes[one].leave_office(self);
            next.nodes[one].term = next.term;
        }
        let due = SLOW + self.given_by_new_leader;
        next.nodes[node].office = Some(Office::new(next.term, next.table.alive, due));
        next.seen.fail_over_with_live_lease |= next.clients.iter().any(|client| client.is_sure());
        Some(())
    }

    fn answer(&self, next: &mut State, node: usize, client: usize) -> Option<()> {
        let Renewal::Asked(sent) = next.clients[client].renewal else { return None };
        let office = next.nodes[node].office.as_mut()?;
        let proven = office.heard_since.is_some_and(|since| SLOW - since < PROMISE - DRIFT);
        if self.quorum_lease && !proven {
            return None;
        }
        let Lifeline::DueAt(due) = &mut office.sessions[client] else { return None };
        *due = SLOW + TTL;
        next.clients[client].renewal = Renewal::Answered(sent);
        Some(())
    }

    fn learn(&self, next: &mut State, client: usize) -> Option<()> {
        let client = &mut next.clients[client];
        let Renewal::Answered(sent) = client.renewal else { return None };
        let counts_from = if self.counted_from_sending { sent } else { FAST };
        client.deadline = client.deadline.max(counts_from + TTL - self.client_drift);
        client.renewal = Renewal::None;
        Some(())
    }

    /// Only who leads in the newest term gets anything into the log.
    fn leads(&self, next: &State, node: usize) -> bool {
        next.nodes[node].office.as_ref().is_some_and(|office| office.term == next.term)
    }

    fn grant(&self, next: &mut State, leader: usize, client: usize) -> Option<()> {
        if !self.leads(next, leader) || next.table.holder.is_some() || !next.table.alive[client] {
            return None;
        }
        let office = next.nodes[leader].office.as_mut()?;
        let token = if self.tokens_in_log {
            next.table.last_token + 1
        } else {
            office.tokens += 1;
            office.tokens
        };
        next.seen.token_went_back |= token <= next.table.last_token;
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
        let lifeline = &mut node.office.as_mut()?.sessions[client];
        let table = &mut next.table;
        if !table.alive[client] {
            return Some(());
        }
        let stale = table.version[client] != decided_at;
        if stale && self.version_checked {
            *lifeline = Lifeline::DueAt(SLOW + TTL);
            return Some(());
        }
        next.seen.ended_by_stale_expiry |= stale;
        *lifeline = Lifeline::Ended;
        table.alive[client] = false;
        if table.holder == Some(client) {
            table.holder = None;
        }
        Some(())
    }
}
