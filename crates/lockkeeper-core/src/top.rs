//! The most contended and the longest held locks. Found without visiting every lock, so that the cost does not grow with
//! their number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smol_str::SmolStr;

use crate::history::ShortSession;
use crate::id::{CellTime, LockName, SessionId, Ticket, Token};
use crate::reads;
use crate::session::Session;
use crate::table::LockTable;

/// Maximum number of locks or sessions that are visited; beyond that the answer is a sample. Each takes several lookups, so
/// all of them take a few milliseconds.
const VISITED_MAX: usize = 4_096;

/// A contended lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contended {
    /// The lock.
    pub lock: LockName,
    /// The number of waiters.
    pub waiting: u32,
    /// How long the first waiter has waited.
    pub waited_ms: u64,
    /// The owner of the first holder.
    pub owner: SmolStr,
}

/// A lock that has been held for a long time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongHeld {
    /// The lock.
    pub lock: LockName,
    /// For how long.
    pub held_ms: u64,
    /// The token.
    pub token: Token,
    /// The owner of the holder.
    pub owner: SmolStr,
    /// The number of waiters.
    pub waiting: u32,
}

impl LockTable {
    /// The locks with the most waiters, and whether some locks were not visited.
    pub fn most_contended(&self, now: CellTime, limit: usize) -> (Vec<Contended>, bool) {
        let now = now.max(self.now);
        let mut found: Vec<Contended> = Vec::new();
        let mut visited = 0;
        let mut next = self.queues.get_min().map(|(name, _)| name.clone());
        while let Some(name) = next {
            if visited == VISITED_MAX {
                break;
            }
            visited += 1;
            reads::count(1);
            let behind = (name.clone(), Ticket(u64::MAX));
            next = self.queues.range(behind..).map(|(name, _)| name.clone()).next();
            let Some(lock) = self.locks.get(&name) else { continue };
            let first = self.head(&name).and_then(|ticket| self.waiters.get(&ticket));
            let holder = lock.holders.iter().next();
            let owner = holder.and_then(|(_, session)| self.sessions.get(&session));
            found.push(Contended {
                waiting: lock.waiting,
                waited_ms: first.map_or(0, |waiter| now.ms_since(waiter.since)),
                owner: owner.map(|session| session.owner.clone()).unwrap_or_default(),
                lock: name,
            });
        }
        let sampled = visited == VISITED_MAX;
        found.sort_by(|one, other| {
            (other.waiting, other.waited_ms)
                .cmp(&(one.waiting, one.waited_ms))
                .then(one.lock.cmp(&other.lock))
        });
        found.truncate(limit);
        (found, sampled)
    }

    /// The longest held locks, and whether some sessions were not visited. Tokens rise, so the first grant of each session is
    /// its oldest.
    pub fn longest_held(&self, now: CellTime, limit: usize) -> (Vec<LongHeld>, bool) {
        let now = now.max(self.now);
        let first_of = |session: SessionId, from: Token| {
            reads::count(1);
            let (&(owner, token), held) = self.grants.range((session, from)..).next()?;
            (owner == session).then_some(Reverse((held.since, token, session)))
        };
        let (mut oldest, mut visited) = (BinaryHeap::new(), 0);
        let mut next = self.grants.get_min().map(|((session, token), held)| (*session, *token, held.since));
        while let Some((session, token, since)) = next
            && visited < VISITED_MAX
        {
            visited += 1;
            reads::count(1);
            // An ended session holds its locks until they are freed, but is not shown.
            if self.sessions.contains_key(&session) {
                oldest.push(Reverse((since, token, session)));
            }
            let mut behind = self.grants.range((session, Token(u64::MAX))..);
            next = behind.next().map(|((session, token), held)| (*session, *token, held.since));
        }
        let sampled = visited == VISITED_MAX;
        let mut found = Vec::new();
        while let Some(Reverse((since, token, session))) = oldest.pop() {
            let Some(held) = self.grants.get(&(session, token)) else { continue };
            for lock in held.locks.as_slice() {
                found.push(LongHeld {
                    lock: lock.clone(),
                    held_ms: now.ms_since(since),
                    token,
                    owner: self.sessions.get(&session).map(|s| s.owner.clone()).unwrap_or_default(),
                    waiting: self.locks.get(lock).map_or(0, |lock| lock.waiting),
                });
            }
            if found.len() >= limit {
                break;
            }
            oldest.extend(first_of(session, Token(token.0 + 1)));
        }
        found.truncate(limit);
        (found, sampled)
    }

    /// The age of the oldest waiting request. Tickets rise, so it is the first.
    pub fn oldest_wait_ms(&self, now: CellTime) -> u64 {
        self.waiters.get_min().map_or(0, |(_, waiter)| now.max(self.now).ms_since(waiter.since))
    }

    /// The live sessions in the order of their ids, after `after`.
    pub fn sessions_after(
        &self,
        after: Option<ShortSession>,
    ) -> impl Iterator<Item = (SessionId, &Session)> + '_ {
        let from = after.map_or(0, |ShortSession(short)| (u128::from(short) + 1) << 96);
        // Nothing comes after the last one: the shift has overflowed.
        let none = after == Some(ShortSession(u32::MAX));
        let found = self.sessions.range(SessionId(from)..).inspect(|_| reads::count(1));
        let found = found.map(|(id, session)| (*id, session));
        found.filter(move |_| !none)
    }
}
