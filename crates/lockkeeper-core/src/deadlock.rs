//! Deadlocks: prevented by age (wait-die, wound-wait), or detected by the request that would close a cycle.
//!
//! The wait-for graph: a request waits for the one before it in each queue, and the head of a queue waits for the holders
//! of the lock. All requests of a scope are one node, so a scope that holds one lock and waits for another connects the
//! two. A request without a scope is a node of its own: it holds nothing while it waits, but the requests behind it wait
//! for it. A holder without a scope waits for nothing.
//!
//! Only a request that joins a queue can close a cycle, and that cycle contains its scope. The search is bidirectional:
//! from the nodes that the request would wait for, and from those that wait for it. It ends when either side is
//! exhausted, so it costs at most twice the smaller side. A scope that holds nothing needs no search.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::admission::Demand;
use crate::bounds::bounds;
use crate::command::{Acquire, Wait};
use crate::effect::Freed;
use crate::id::{LockName, Ticket, Token};
use crate::mutation::{self, Mutation};
use crate::refusal::Refusal;
use crate::scope::{Policy, ScopeNo, Scopes, scope_of};
use crate::session::Remembered;
use crate::table::LockTable;
use crate::work::{Task, too_expensive};

/// One step of a deadlock cycle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStep {
    /// The scope that waits; empty for a request without one.
    pub scope: SmolStr,
    /// The owner of its session, for people.
    pub owner: SmolStr,
    /// The lock it waits for. The next step holds it, or is before it in the queue.
    pub lock: LockName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Scope(ScopeNo),
    /// A request without a scope.
    Request(Ticket),
}

/// For each visited node: the node from which the search reached it, and the lock between the two.
type Trail = BTreeMap<Node, (Node, LockName)>;

/// The result of a search for a cycle.
#[derive(Debug)]
pub(crate) enum Search {
    /// Complete: the cycle, if there is one.
    Done(Option<Vec<CycleStep>>),
    /// The budget of the entry is spent: the search has to restart in a later entry.
    Unfinished,
    /// The search takes more steps than any request may use.
    TooExpensive,
}

/// The step budget of a search is exhausted.
#[derive(Debug)]
struct Exhausted;

/// The remaining steps of a search.
struct Steps(u64);

impl Steps {
    fn spend(&mut self, steps: u64) -> Result<(), Exhausted> {
        self.0 = self.0.checked_sub(steps).ok_or_else(|| {
            self.0 = 0;
            Exhausted
        })?;
        Ok(())
    }
}

impl LockTable {
    /// Applies the age policy to a scope's request that cannot be granted at once. May free locks.
    pub(crate) fn apply_age_policy(
        &mut self,
        request: &Acquire,
        scope: ScopeNo,
        demand: Demand,
    ) -> Result<(), Refusal> {
        match request.policy {
            Policy::Detect => {}
            Policy::WaitDie => {
                for name in request.locks.as_slice() {
                    let holds = Scopes::oldest(&self.scopes.holding, name);
                    let waits = Scopes::oldest(&self.scopes.waiting, name);
                    if let Some(older) = holds.into_iter().chain(waits).min().filter(|no| *no < scope) {
                        let older = self.owner_of(Node::Scope(older));
                        return Err(Refusal::Died { lock: name.clone(), older });
                    }
                }
            }
            Policy::WoundWait => {
                if matches!(request.wait, Wait::No | Wait::ForMs(0))
                    && !self.is_available_after_wounding(request, scope, demand)?
                {
                    return Ok(());
                }
                for name in request.locks.as_slice() {
                    while let Some(victim) = self.youngest_blocker(name, scope, demand.units)? {
                        self.wound(victim);
                    }
                }
            }
        }
        // A scope that holds what an older wounding scope waits for must not wait itself.
        if matches!(request.wait, Wait::No | Wait::ForMs(0)) || self.scopes.wounding.is_empty() {
            return Ok(());
        }
        self.check_steps_left()?;
        if self.blocks_older_wounder(scope) {
            self.wound(scope);
            if let Some(state) = self.scopes.all.get_mut(&scope) {
                // The answer to this request reports it.
                state.wounded = false;
            }
            return Err(Refusal::Wounded);
        }
        Ok(())
    }

    /// The youngest holder, if it is younger than `scope`, and `scope` or a waiter before it lacks room in the lock.
    fn youngest_blocker(
        &mut self,
        name: &LockName,
        scope: ScopeNo,
        units: u32,
    ) -> Result<Option<ScopeNo>, Refusal> {
        self.check_steps_left()?;
        let Some(lock) = self.locks.get(name) else { return Ok(None) };
        let mut needed = u64::from(lock.used) + u64::from(units);
        let mut queue =
            self.queues.range((name.clone(), Ticket::default())..).take_while(|(lock, _)| lock == name);
        while needed <= u64::from(lock.capacity) {
            self.work.charge(1);
            if self.work.is_exhausted() {
                return Err(too_expensive("taking the locks from younger scopes"));
            }
            let Some((_, ticket)) = queue.next() else { return Ok(None) };
            needed += self.waiters.get(ticket).map_or(0, |waiter| u64::from(waiter.units));
        }
        let all = (name.clone(), ScopeNo::default(), Token::default())
            ..(name.clone(), ScopeNo(u64::MAX), Token(u64::MAX));
        self.work.charge(1);
        Ok(self.scopes.holding.range(all).next_back().map(|(_, no, _)| *no).filter(|no| *no > scope))
    }

    /// Fails if the budget is spent. Wounding cannot be deferred: until it is complete, the request must not wait. Scopes
    /// that were wounded before the budget ran out stay wounded.
    fn check_steps_left(&self) -> Result<(), Refusal> {
        match self.work.is_exhausted() {
            true => Err(too_expensive("taking the locks from younger scopes")),
            false => Ok(()),
        }
    }

    /// Whether the request could be granted at once if the younger holders were wounded.
    fn is_available_after_wounding(
        &mut self,
        request: &Acquire,
        scope: ScopeNo,
        demand: Demand,
    ) -> Result<bool, Refusal> {
        for name in request.locks.as_slice() {
            let Some(lock) = self.locks.get(name) else { continue };
            if lock.is_free() || (lock.waiting == 0 && lock.admits(demand.units)) {
                continue;
            }
            if lock.waiting > 0 {
                return Ok(false);
            }
            for (token, session) in lock.holders.iter() {
                if self.work.is_exhausted() {
                    return Err(too_expensive("taking the locks from younger scopes"));
                }
                self.work.charge(1);
                let held = self.grants.get(&(session, token));
                let holder = held.and_then(|held| scope_of(held.extra.as_ref()));
                if holder.is_none_or(|holder| holder < scope) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether an older scope with the wound-wait policy waits for a lock that this scope holds.
    fn blocks_older_wounder(&mut self, scope: ScopeNo) -> bool {
        if self.scopes.wounding.is_empty() {
            return false;
        }
        let Some(state) = self.scopes.all.get(&scope) else { return false };
        self.work.charge(u64::from(state.locks_held));
        self.scopes.tokens_of(scope).any(|token| {
            let held = self.grants.get(&(state.session, token));
            held.is_some_and(|held| {
                let oldest = |name| Scopes::oldest(&self.scopes.wounding, name);
                held.locks.as_slice().iter().filter_map(oldest).any(|no| no < scope)
            })
        })
    }

    /// Schedules wounding after the current command if a scope that waits for other locks was granted a lock for which an
    /// older wounding scope waits.
    pub(crate) fn schedule_wound(&mut self, scope: ScopeNo, locks: &[LockName]) {
        let waits = self.scopes.tickets_of(scope).next().is_some();
        let is_older = |name| Scopes::oldest(&self.scopes.wounding, name).is_some_and(|no| no < scope);
        if waits && locks.iter().any(is_older) {
            self.to_wound.push(scope);
        }
    }

    pub(crate) fn wound_scheduled(&mut self) {
        while let Some(scope) = self.to_wound.pop() {
            match self.work.is_exhausted() {
                true => self.backlog.push(Task::Wound(scope)),
                false => self.wound_if_blocking(scope),
            }
        }
    }

    pub(crate) fn wound_if_blocking(&mut self, scope: ScopeNo) {
        if self.scopes.tickets_of(scope).next().is_some() && self.blocks_older_wounder(scope) {
            self.wound(scope);
        }
    }

    /// Takes everything from a scope. It learns of it by the end of its waits, or else from its next request.
    fn wound(&mut self, scope: ScopeNo) {
        let Some(state) = self.scopes.all.get(&scope) else { return };
        let session = state.session;
        let tickets: Vec<Ticket> = self.scopes.tickets_of(scope).collect();
        let tokens: Vec<Token> = self.scopes.tokens_of(scope).collect();
        // End its waits first, so that nothing is granted to it meanwhile.
        for &ticket in &tickets {
            self.end_wait(ticket, Refusal::Wounded);
        }
        for token in tokens {
            let locks = self.grants.get(&(session, token)).map(|held| held.locks.clone());
            for name in locks.iter().flat_map(|locks| locks.as_slice()) {
                if let Some(Some(request)) = self.free_one(session, name, token, Freed::Wounded) {
                    let answer = Remembered::Refused(Refusal::NotHeld { lock: name.clone(), token });
                    self.settle(session, request, answer);
                }
            }
        }
        if let Some(state) = self.scopes.all.get_mut(&scope) {
            state.wounded = tickets.is_empty();
        }
    }

    /// Searches for a cycle through this waiting request. `newest` is the request itself if it has just joined its queues:
    /// then no request is behind it.
    pub(crate) fn search(&mut self, scope: ScopeNo, ticket: Ticket, newest: Option<Ticket>) -> Search {
        let most = match mutation::is_on(Mutation::IgnoreBudget) {
            true => u64::MAX,
            false => bounds().steps_per_search,
        };
        let granted = most.min(self.work.left());
        let mut steps = Steps(granted);
        let found = self.cycle(scope, ticket, newest, &mut steps);
        self.work.charge(granted - steps.0);
        match found {
            Ok(cycle) => Search::Done(cycle),
            Err(Exhausted) if granted == most => Search::TooExpensive,
            Err(Exhausted) => Search::Unfinished,
        }
    }

    /// Repeats a search that an earlier entry deferred. False if this entry has no steps left for it either.
    pub(crate) fn resume_search(&mut self, ticket: Ticket) -> bool {
        let waiter = self.waiters.get(&ticket);
        let Some(scope) = waiter.and_then(|waiter| scope_of(waiter.extra.as_ref())) else { return true };
        match self.search(scope, ticket, None) {
            Search::Done(None) => true,
            Search::Done(Some(cycle)) => {
                self.end_wait(ticket, Refusal::Deadlock { cycle: cycle.into() });
                true
            }
            Search::TooExpensive => {
                self.end_wait(ticket, too_expensive("the search for deadlocks"));
                true
            }
            Search::Unfinished => false,
        }
    }

    /// The cycle that this request closes by joining its queues, beginning with its own scope.
    fn cycle(
        &self,
        scope: ScopeNo,
        ticket: Ticket,
        newest: Option<Ticket>,
        steps: &mut Steps,
    ) -> Result<Option<Vec<CycleStep>>, Exhausted> {
        // No node waits for a scope that holds nothing and is in no other queue.
        if newest.is_some()
            && self.scopes.all.get(&scope).is_some_and(|scope| scope.grants == 0 && scope.waits == 1)
        {
            return Ok(None);
        }
        let own = Node::Scope(scope);
        let (mut ahead, mut behind) = (Trail::new(), Trail::new());
        let mut from_behind = VecDeque::from([own]);
        let mut from_ahead = VecDeque::new();
        for (node, lock) in self.waits_for(ticket, steps)? {
            if node == own {
                return Ok(Some(vec![self.cycle_step(own, lock)]));
            }
            if ahead.insert(node, (own, lock)).is_none() {
                from_ahead.push_back(node);
            }
        }
        loop {
            let Some(node) = from_behind.pop_front() else { return Ok(None) };
            for (last, lock) in self.waited_for_by(node, newest, steps)? {
                if ahead.contains_key(&last) {
                    return Ok(Some(self.steps_of(own, last, (node, lock), &ahead, &behind)));
                }
                if last != own {
                    behind.entry(last).or_insert_with(|| {
                        from_behind.push_back(last);
                        (node, lock)
                    });
                }
            }
            if from_behind.is_empty() {
                return Ok(None);
            }
            let Some(node) = from_ahead.pop_front() else { return Ok(None) };
            for ticket in self.tickets(node) {
                for (next, lock) in self.waits_for(ticket, steps)? {
                    if next == own || behind.contains_key(&next) {
                        return Ok(Some(self.steps_of(own, node, (next, lock), &ahead, &behind)));
                    }
                    ahead.entry(next).or_insert_with(|| {
                        from_ahead.push_back(next);
                        (node, lock)
                    });
                }
            }
        }
    }

    /// The cycle: from the own scope to `last` along the forward search, from `last` to `next`, and back to the own scope
    /// along the backward search.
    fn steps_of(
        &self,
        own: Node,
        last: Node,
        (next, lock): (Node, LockName),
        ahead: &Trail,
        behind: &Trail,
    ) -> Vec<CycleStep> {
        let mut steps = vec![self.cycle_step(last, lock)];
        let mut node = last;
        while let Some((before, lock)) = ahead.get(&node) {
            steps.push(self.cycle_step(*before, lock.clone()));
            node = *before;
        }
        steps.reverse();
        let mut node = next;
        while node != own
            && let Some((next, lock)) = behind.get(&node)
        {
            steps.push(self.cycle_step(node, lock.clone()));
            node = *next;
        }
        steps
    }

    fn cycle_step(&self, node: Node, lock: LockName) -> CycleStep {
        let scope = match node {
            Node::Scope(no) => self.scopes.all.get(&no).map(|scope| scope.name.clone()),
            Node::Request(_) => None,
        };
        CycleStep { scope: scope.unwrap_or_default(), owner: self.owner_of(node), lock }
    }

    fn owner_of(&self, node: Node) -> SmolStr {
        let session = match node {
            Node::Scope(no) => self.scopes.all.get(&no).map(|scope| scope.session),
            Node::Request(ticket) => self.waiters.get(&ticket).map(|waiter| waiter.session),
        };
        session.and_then(|session| Some(self.sessions.get(&session)?.owner.clone())).unwrap_or_default()
    }

    fn node_of(&self, ticket: Ticket) -> Node {
        let waiter = self.waiters.get(&ticket);
        match waiter.and_then(|waiter| scope_of(waiter.extra.as_ref())) {
            Some(scope) => Node::Scope(scope),
            None => Node::Request(ticket),
        }
    }

    fn tickets(&self, node: Node) -> impl Iterator<Item = Ticket> + '_ {
        let (scope, lone) = match node {
            Node::Scope(no) => (Some(self.scopes.tickets_of(no)), None),
            Node::Request(ticket) => (None, Some(ticket)),
        };
        scope.into_iter().flatten().chain(lone)
    }

    /// The nodes that a request waits for: the request before it in each queue, or the holders of the lock.
    fn waits_for(&self, ticket: Ticket, steps: &mut Steps) -> Result<Vec<(Node, LockName)>, Exhausted> {
        let Some(waiter) = self.waiters.get(&ticket) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for name in waiter.locks.as_slice() {
            steps.spend(1)?;
            // Tickets begin at 1, so there is one below every ticket.
            let before = self.queues.get_prev(&(name.clone(), Ticket(ticket.0 - 1)));
            let before = before.filter(|(lock, _)| lock == name);
            match before {
                Some((_, before)) => found.push((self.node_of(*before), name.clone())),
                None => {
                    let holders =
                        self.scopes.holding.range((name.clone(), ScopeNo::default(), Token::default())..);
                    for (_, no, _) in holders.take_while(|(lock, _, _)| lock == name) {
                        if self.blocks(*no, name, waiter.units, steps)? {
                            found.push((Node::Scope(*no), name.clone()));
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    /// The nodes that wait for a node: the request behind each of its requests, and the head of the queue of each lock it
    /// holds. `newest` has just arrived, so no request is behind it.
    fn waited_for_by(
        &self,
        node: Node,
        newest: Option<Ticket>,
        steps: &mut Steps,
    ) -> Result<Vec<(Node, LockName)>, Exhausted> {
        let mut found = Vec::new();
        for ticket in self.tickets(node).filter(|ticket| Some(*ticket) != newest) {
            let Some(waiter) = self.waiters.get(&ticket) else { continue };
            for name in waiter.locks.as_slice() {
                steps.spend(1)?;
                let next = self.queues.get_next(&(name.clone(), Ticket(ticket.0 + 1)));
                let next = next.filter(|(lock, _)| lock == name);
                found.extend(next.map(|(_, next)| (self.node_of(*next), name.clone())));
            }
        }
        let Node::Scope(no) = node else { return Ok(found) };
        let Some(state) = self.scopes.all.get(&no) else { return Ok(found) };
        for token in self.scopes.tokens_of(no) {
            let Some(held) = self.grants.get(&(state.session, token)) else { continue };
            for name in held.locks.as_slice() {
                steps.spend(1)?;
                let Some(head) = self.head(name) else { continue };
                let units = self.waiters.get(&head).map_or(0, |waiter| waiter.units);
                if self.blocks(no, name, units, steps)? {
                    found.push((self.node_of(head), name.clone()));
                }
            }
        }
        Ok(found)
    }

    /// Returns true if a request for `units` units of the lock cannot be granted while this scope holds its own. A holder of a
    /// counted lock may not block it: the release of another holder can suffice.
    fn blocks(
        &self,
        scope: ScopeNo,
        name: &LockName,
        units: u32,
        steps: &mut Steps,
    ) -> Result<bool, Exhausted> {
        let Some(lock) = self.locks.get(name) else { return Ok(false) };
        let Some(state) = self.scopes.all.get(&scope) else { return Ok(false) };
        let own = self.scopes.holding.range((name.clone(), scope, Token::default())..);
        let mut held = 0;
        for (_, _, token) in own.take_while(|(lock, no, _)| lock == name && *no == scope) {
            steps.spend(1)?;
            held += self.grants.get(&(state.session, *token)).map_or(0, |held| u64::from(held.units));
        }
        Ok(u64::from(lock.capacity) < held + u64::from(units))
    }
}
