//! The wait graph. Sessions are the nodes; an edge leads from a waiting session to one that blocks it.
//!
//! A cycle is a deadlock if each session in it does one thing at a time. A session may have several independent
//! scopes, so a cycle is only a hint. The table refuses requests that close a cycle of scopes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smol_str::SmolStr;

use crate::history::ShortSession;
use crate::id::{CellTime, LockName, SessionId, Ticket};
use crate::reads;
use crate::table::LockTable;

/// Maximum number of waits that a graph starts with, oldest first.
const WAITS_MAX: usize = 300;
/// Maximum number of edges in a graph.
const EDGES_MAX: usize = 1_000;
/// Maximum number of waiting requests that are followed.
const FOLLOWED_MAX: usize = 2_000;
/// Maximum number of locks whose holders are examined.
const LOCKS_MAX: usize = 4_000;
/// Maximum number of holders of one lock that get an edge.
const HOLDERS_MAX: usize = 8;

/// The wait graph of a lock or of the cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitGraph {
    /// The sessions.
    pub nodes: Vec<Node>,
    /// The edges, from a waiting session to one that blocks it.
    pub edges: Vec<Edge>,
    /// The longest path along edges, as indexes of nodes.
    pub longest_chain: Vec<usize>,
    /// The number of cycles.
    pub cycles: usize,
    /// Whether some waits were omitted.
    pub sampled: bool,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The first digits of its id.
    pub session: ShortSession,
    /// Its owner.
    pub owner: SmolStr,
    /// The number of grants it holds.
    pub holds: u32,
    /// The number of the cycle that it belongs to, from 1; 0 if none.
    pub cycle: usize,
}

/// One session blocked by another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Index of the waiting node.
    pub from: usize,
    /// Index of the blocking node.
    pub to: usize,
    /// The lock.
    pub lock: LockName,
    /// For how long it has waited.
    pub waited_ms: u64,
}

impl LockTable {
    /// The wait graph of one lock, including what its holders wait for, or of the whole cell.
    pub fn wait_graph(&self, lock: Option<&LockName>, now: CellTime) -> WaitGraph {
        let now = now.max(self.now);
        let mut builder = Builder::default();
        let mut open: VecDeque<Ticket> = match lock {
            Some(lock) => {
                let queue = self.queues.range((lock.clone(), Ticket::default())..);
                queue
                    .take_while(|(name, _)| name == lock)
                    .map(|(_, ticket)| *ticket)
                    .take(WAITS_MAX)
                    .collect()
            }
            None => self.waiters.keys().copied().take(WAITS_MAX).collect(),
        };
        builder.graph.sampled = lock.is_none() && self.waiters.len() > WAITS_MAX;
        reads::count(open.len());
        let mut seen: BTreeSet<Ticket> = open.iter().copied().collect();
        // Sessions whose waits are already followed.
        let mut followed: BTreeSet<SessionId> = BTreeSet::new();
        let mut locks = 0;
        while let Some(ticket) = open.pop_front() {
            let Some(waiter) = self.waiters.get(&ticket) else { continue };
            for name in waiter.locks.as_slice() {
                reads::count(1);
                locks += 1;
                if locks > LOCKS_MAX {
                    builder.graph.sampled = true;
                    return builder.finish();
                }
                for other in self.blockers(name, ticket) {
                    if builder.graph.edges.len() == EDGES_MAX {
                        builder.graph.sampled = true;
                        return builder.finish();
                    }
                    let (from, to) = (builder.node(self, waiter.session), builder.node(self, other));
                    let waited_ms = now.ms_since(waiter.since);
                    builder.graph.edges.push(Edge { from, to, lock: name.clone(), waited_ms });
                    if !followed.insert(other) {
                        continue;
                    }
                    let theirs = self.waits.range((other, Ticket::default())..);
                    let theirs = theirs.take_while(|(session, _)| *session == other).take(WAITS_MAX);
                    for (_, ticket) in theirs {
                        reads::count(1);
                        if seen.len() == FOLLOWED_MAX {
                            builder.graph.sampled = true;
                            break;
                        }
                        if seen.insert(*ticket) {
                            open.push_back(*ticket);
                        }
                    }
                }
            }
        }
        builder.finish()
    }

    /// The sessions of the holders; if the lock is not held, the session of the request before this one in the queue.
    fn blockers(&self, name: &LockName, ticket: Ticket) -> Vec<SessionId> {
        let Some(lock) = self.locks.get(name) else { return Vec::new() };
        let mut sessions: Vec<_> =
            lock.holders.iter().map(|(_, session)| session).take(HOLDERS_MAX).collect();
        reads::count(sessions.len());
        if sessions.is_empty() {
            let before = self.queues.range(..(name.clone(), ticket)).next_back();
            let before = before.filter(|(lock, _)| lock == name).and_then(|(_, t)| self.waiters.get(t));
            sessions.extend(before.map(|waiter| waiter.session));
        }
        sessions.dedup();
        sessions
    }
}

#[derive(Default)]
struct Builder {
    graph: WaitGraph,
    known: BTreeMap<SessionId, usize>,
}

impl Builder {
    fn node(&mut self, table: &LockTable, session: SessionId) -> usize {
        let nodes = &mut self.graph.nodes;
        *self.known.entry(session).or_insert_with(|| {
            let alive = table.sessions.get(&session);
            nodes.push(Node {
                session: session.into(),
                owner: alive.map(|session| session.owner.clone()).unwrap_or_default(),
                holds: alive.map_or(0, |session| session.grants),
                cycle: 0,
            });
            nodes.len() - 1
        })
    }

    fn finish(self) -> WaitGraph {
        let mut graph = self.graph;
        let mut successors = vec![Vec::new(); graph.nodes.len()];
        for edge in graph.edges.iter().filter(|edge| edge.from != edge.to) {
            if !successors[edge.from].contains(&edge.to) {
                successors[edge.from].push(edge.to);
            }
        }
        for cycle in cycles(&successors) {
            graph.cycles += 1;
            for node in cycle {
                graph.nodes[node].cycle = graph.cycles;
            }
        }
        let in_cycle: Vec<bool> = graph.nodes.iter().map(|node| node.cycle > 0).collect();
        graph.longest_chain = longest_chain(&successors, &in_cycle);
        graph
    }
}

/// The strongly connected components of more than one node, by Tarjan's algorithm without recursion.
fn cycles(successors: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut order = vec![UNSEEN; successors.len()];
    let mut low = vec![0; successors.len()];
    let mut on_stack = vec![false; successors.len()];
    let (mut stack, mut found, mut count) = (Vec::new(), Vec::new(), 0);
    for start in 0..successors.len() {
        if order[start] != UNSEEN {
            continue;
        }
        let mut path = vec![(start, 0)];
        while let Some(&mut (node, ref mut next)) = path.last_mut() {
            if *next == 0 && order[node] == UNSEEN {
                (order[node], low[node]) = (count, count);
                count += 1;
                stack.push(node);
                on_stack[node] = true;
            }
            if let Some(&to) = successors[node].get(*next) {
                *next += 1;
                if order[to] == UNSEEN {
                    path.push((to, 0));
                } else if on_stack[to] {
                    low[node] = low[node].min(order[to]);
                }
                continue;
            }
            path.pop();
            if let Some(&(parent, _)) = path.last() {
                low[parent] = low[parent].min(low[node]);
            }
            if low[node] == order[node] {
                let from = stack.iter().rposition(|&other| other == node).unwrap_or(0);
                let group = stack.split_off(from);
                group.iter().for_each(|&member| on_stack[member] = false);
                if group.len() > 1 {
                    found.push(group);
                }
            }
        }
    }
    found
}

/// The longest path along edges that avoids cycles.
fn longest_chain(successors: &[Vec<usize>], in_cycle: &[bool]) -> Vec<usize> {
    // The length of the longest path from each node, and its first step. Without cycles every node is settled once.
    let mut best: Vec<Option<(usize, Option<usize>)>> = vec![None; successors.len()];
    for start in (0..successors.len()).filter(|&start| !in_cycle[start]) {
        let mut path = vec![start];
        while let Some(&node) = path.last() {
            let onward = || successors[node].iter().copied().filter(|&to| !in_cycle[to]);
            if let Some(unsettled) = onward().find(|&to| best[to].is_none()) {
                path.push(unsettled);
                continue;
            }
            let longest = onward().filter_map(|to| Some((best[to]?.0 + 1, to))).max();
            best[node] = Some(longest.map_or((0, None), |(length, to)| (length, Some(to))));
            path.pop();
        }
    }
    let first = (0..successors.len()).filter_map(|node| Some((best[node]?.0, std::cmp::Reverse(node)))).max();
    let mut chain = Vec::new();
    let mut at = first.map(|(_, std::cmp::Reverse(node))| node);
    while let Some(node) = at {
        chain.push(node);
        at = best[node].and_then(|(_, next)| next);
    }
    if chain.len() < 2 { Vec::new() } else { chain }
}
