//! Reads of the table. They do not change it and bypass the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdSet;
use smol_str::SmolStr;

use crate::command::Mode;
use crate::effect::Grant;
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
use crate::lock::Lock;
use crate::reads;
use crate::scope::{OptionalAttributes, scope_of};
use crate::session::Session;
use crate::table::LockTable;
use crate::value::StoredValue;

/// The view of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// Its capacity; 1 for an uncounted lock.
    pub capacity: u32,
    /// The highest token granted for it. May be higher, never lower, for a lock that was free for a long time.
    pub last_token: Token,
    /// The holders, up to the limit of the view.
    pub holders: Vec<HolderView>,
    /// The first waiters, up to the limit of the view.
    pub queue: Vec<WaiterView>,
    /// The number of all waiters.
    pub waiting: u32,
    /// The remaining lock-delay.
    pub closed_ms: u64,
}

/// The view of a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderView {
    /// Its session.
    pub session: SessionId,
    /// Its token.
    pub token: Token,
    /// Exclusive or shared.
    pub mode: Mode,
    /// Permits of a counted lock; 1 otherwise.
    pub permits: u32,
    /// The owner of its session; empty if the session has ended and the grant is about to be freed.
    pub owner: SmolStr,
    /// How long it has held the lock, in cell time.
    pub held_ms: u64,
    /// Its scope; empty if it has none.
    pub scope: SmolStr,
    /// The value of the leader of an election; empty for other locks.
    pub value: SmolStr,
}

/// The view of a waiting request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterView {
    /// Its session.
    pub session: SessionId,
    /// The position in the queue, from 1.
    pub position: u32,
    /// Exclusive or shared.
    pub mode: Mode,
    /// The owner of its session.
    pub owner: SmolStr,
    /// How long it has waited, in cell time.
    pub waited_ms: u64,
    /// Its scope; empty if it has none.
    pub scope: SmolStr,
    /// The value of a candidate of an election; empty for other locks.
    pub value: SmolStr,
}

/// The leader of an election: the first holder of its lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderView {
    /// Its session.
    pub session: SessionId,
    /// The owner of its session; empty if the session has ended and the grant is about to be freed.
    pub owner: SmolStr,
    /// The token of its grant, which is its epoch.
    pub token: Token,
    /// The value that it campaigned with.
    pub value: SmolStr,
}

/// The size of a table in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Live sessions.
    pub sessions: u64,
    /// Grants.
    pub grants: u64,
    /// Locks that are held, waited for or closed.
    pub locks: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Values.
    pub values: u64,
}

impl LockTable {
    /// The highest token that was ever granted for a lock, or an upper bound of it.
    pub fn last_token_of(&self, lock: &LockName) -> Token {
        reads::count(1);
        self.locks.get(lock).map_or(self.forgotten, |lock| lock.last_token)
    }

    /// The highest token of the table.
    pub fn last_token(&self) -> Token {
        self.last_token
    }

    /// Whether this token holds this lock now.
    pub fn holds(&self, lock: &LockName, token: Token) -> bool {
        reads::count(1);
        self.locks.get(lock).is_some_and(|lock| lock.holders.contains(token))
    }

    /// The current leader of the election with this lock. Does not visit the queue, so every observer can call it on every
    /// change.
    pub fn leader_of(&self, lock: &LockName) -> Option<LeaderView> {
        reads::count(1);
        let (token, session) = self.locks.get(lock)?.holders.iter().next()?;
        let held = self.grants.get(&(session, token))?;
        let value = value_of(held.extra.as_ref());
        Some(LeaderView { session, owner: self.owner_of_session(session), token, value })
    }

    /// The number of requests that wait for a lock. Does not visit the queue.
    pub fn waiting_for(&self, lock: &LockName) -> u32 {
        reads::count(1);
        self.locks.get(lock).map_or(0, |lock| lock.waiting)
    }

    /// The owner of a session; empty if the session has ended.
    fn owner_of_session(&self, session: SessionId) -> SmolStr {
        self.sessions.get(&session).map_or_else(SmolStr::default, |session| session.owner.clone())
    }

    /// A live session.
    pub fn session(&self, session: SessionId) -> Option<&Session> {
        reads::count(1);
        self.sessions.get(&session)
    }

    /// All live sessions.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// The live sessions in the order of their ids, from `first`. A new leader gives each its full time to live.
    pub fn sessions_from(&self, first: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.range(first..).map(|(id, session)| (*id, session))
    }

    /// The grants of a session.
    pub fn grants_of(&self, session: SessionId) -> impl Iterator<Item = Grant> + '_ {
        self.grants
            .range((session, Token::default())..)
            .inspect(|_| reads::count(1))
            .take_while(move |((owner, _), _)| *owner == session)
            .map(|((_, token), held)| Grant::new(held, *token))
    }

    /// Waiting requests in the order of their tickets, from `first`, with their request ids.
    pub fn waiting_requests_from(
        &self,
        first: Ticket,
    ) -> impl Iterator<Item = (Ticket, SessionId, Option<&RequestId>)> {
        let waiters = self.waiters.range(first..);
        waiters.map(|(ticket, waiter)| (*ticket, waiter.session, waiter.request.as_ref()))
    }

    /// The last ticket that was issued.
    pub fn last_ticket(&self) -> Ticket {
        self.last_ticket
    }

    /// A value.
    pub fn value(&self, key: &str) -> Option<&StoredValue> {
        reads::count(1);
        self.values.get(key)
    }

    /// The size of the table in records.
    pub fn counts(&self) -> Counts {
        reads::count(1);
        Counts {
            sessions: self.sessions.len() as u64,
            grants: self.grants.len() as u64,
            locks: (self.locks.len() - self.free.len()) as u64,
            waiting: self.waiters.len() as u64,
            values: self.values.len() as u64,
        }
    }

    /// The view of a lock, with at most `limit` holders and as many waiters. An unknown lock is free.
    pub fn lock_view(&self, name: &LockName, now: CellTime, limit: usize) -> LockView {
        match self.locks.get(name) {
            Some(lock) => self.view(name, lock, now, limit),
            None => self.view(name, &Lock::new(self.forgotten), now, limit),
        }
    }

    /// Locks in use whose names start with `prefix`, sorted by name, after `after`. Skips at most
    /// [`FREE_LOCKS_REMEMBERED_MAX`](crate::limits::FREE_LOCKS_REMEMBERED_MAX) free locks, which took 8 ms on a release build.
    pub fn lock_views(
        &self,
        prefix: &str,
        after: &str,
        now: CellTime,
        limit: usize,
    ) -> impl Iterator<Item = LockView> + '_ {
        let prefix = prefix.to_owned();
        let after = after.to_owned();
        let from = LockName::from(if after.as_str() > prefix.as_str() { &after } else { &prefix });
        self.locks
            .range(from..)
            .inspect(|_| reads::count(1))
            .take_while(move |(name, _)| name.starts_with(&prefix))
            .filter(move |(name, lock)| name.as_str() > after.as_str() && lock.freed.is_none())
            .map(move |(name, lock)| self.view(name, lock, now, limit))
    }

    fn view(&self, name: &LockName, lock: &Lock, now: CellTime, limit: usize) -> LockView {
        reads::count(1);
        let now = now.max(self.now);
        let counted = lock.capacity != crate::admission::UNCOUNTED;
        let holders =
            lock.holders.iter().take(limit).inspect(|_| reads::count(1)).filter_map(|(token, session)| {
                let held = self.grants.get(&(session, token))?;
                Some(HolderView {
                    session,
                    token,
                    mode: held.mode,
                    permits: if counted { held.units } else { 1 },
                    owner: self.owner_of_session(session),
                    held_ms: now.ms_since(held.since),
                    scope: self.scope_name(held.extra.as_ref()),
                    value: value_of(held.extra.as_ref()),
                })
            });
        let tickets = self
            .queues
            .range((name.clone(), Ticket::default())..)
            .take_while(|(lock, _)| lock == name)
            .take(limit)
            .inspect(|_| reads::count(1));
        let queue = tickets.zip(1..).filter_map(|((_, ticket), position)| {
            let waiter = self.waiters.get(ticket)?;
            Some(WaiterView {
                session: waiter.session,
                position,
                mode: waiter.mode,
                owner: self.owner_of_session(waiter.session),
                waited_ms: now.ms_since(waiter.since),
                scope: self.scope_name(waiter.extra.as_ref()),
                value: value_of(waiter.extra.as_ref()),
            })
        });
        LockView {
            name: name.clone(),
            capacity: lock.displayed_capacity(),
            last_token: lock.last_token,
            holders: holders.collect(),
            queue: queue.collect(),
            waiting: lock.waiting,
            closed_ms: lock.closed_until.ms_since(now),
        }
    }

    fn scope_name(&self, extra: Option<&Arc<OptionalAttributes>>) -> SmolStr {
        let scope = scope_of(extra).and_then(|no| self.scopes.all.get(&no));
        scope.map(|scope| scope.name.clone()).unwrap_or_default()
    }

    /// Checks the invariants of the table, for tests: every index agrees with the records that it indexes.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (counted, recounted) = (self.state_bytes(), self.count_state_bytes());
        if counted != recounted {
            return Err(format!("the table counts {counted} bytes of state, but has {recounted}"));
        }
        let mut used: BTreeMap<&LockName, u64> = BTreeMap::new();
        for ((session, token), held) in &self.grants {
            for name in held.locks.as_slice() {
                *used.entry(name).or_default() += u64::from(held.units);
                let lock = self.locks.get(name).ok_or(format!("{name} is held but unknown"))?;
                if !lock.holders.iter().any(|holder| holder == (*token, *session)) {
                    return Err(format!("{name} does not list its holder {token}"));
                }
                if lock.last_token < *token {
                    return Err(format!("{name} has a last token below {token}"));
                }
            }
        }
        for (name, lock) in &self.locks {
            if u64::from(lock.used) != used.get(name).copied().unwrap_or(0) {
                return Err(format!(
                    "{name} counts {} units, but its holders have a different sum",
                    lock.used
                ));
            }
            if lock.used > lock.capacity {
                return Err(format!("{name} has more holders than capacity"));
            }
            let queued = self.queues.iter().filter(|(lock, _)| lock == name).count();
            if lock.waiting as usize != queued {
                return Err(format!("{name} counts {} waiters, but {queued} are in its queue", lock.waiting));
            }
            if lock.is_free() != lock.freed.is_some() {
                return Err(format!("the free state of {name} and its entry among the free locks disagree"));
            }
            if lock.freed.is_some_and(|number| self.free.get(&number) != Some(name)) {
                return Err(format!("{name} is at the wrong place among the free locks"));
            }
            let head = self.head(name).and_then(|ticket| self.waiters.get(&ticket));
            if let Some(waiter) = head
                && waiter.locks.as_slice().len() == 1
                && self.sessions.contains_key(&waiter.session)
                && lock.admits(waiter.units)
                && !self.backlog.has_admit(name)
                && !self.head(name).is_some_and(|ticket| self.backlog.has_cancel(ticket))
            {
                return Err(format!("{name} has room, but the head of its queue still waits"));
            }
        }
        if self.free.len() != self.locks.values().filter(|lock| lock.freed.is_some()).count() {
            return Err("the free locks contain a lock that is not free".into());
        }
        for (id, session) in &self.sessions {
            let grants = self.grants.iter().filter(|((owner, _), _)| owner == id).count();
            let waits = self.waits.iter().filter(|(owner, _)| owner == id).count();
            if (grants, waits) != (session.grants as usize, session.waits as usize) {
                return Err(format!("{id} counts its grants or waits wrongly"));
            }
        }
        for ((session, number), request) in &self.settled {
            let Some(owner) = self.sessions.get(session) else { continue };
            if !(owner.settled_first..owner.settled_next).contains(number) {
                return Err(format!("{session} does not count its settled request {number}"));
            }
            if !self.requests.contains_key(&(*session, request.clone())) {
                return Err(format!("the answer to the settled request {request} is not remembered"));
            }
        }
        self.check_scopes()?;
        let candidates: OrdSet<_> =
            self.waiters.iter().filter_map(|(ticket, waiter)| waiter.candidate(*ticket)).collect();
        if candidates != self.candidates {
            return Err("the index of candidates disagrees with the waiting requests".into());
        }
        if self.waiters.len() != self.waits.len() {
            return Err("waits of sessions and waiters differ".into());
        }
        Ok(())
    }
}

fn value_of(extra: Option<&Arc<OptionalAttributes>>) -> SmolStr {
    extra.and_then(|extra| extra.value.clone()).unwrap_or_default()
}
