//! What can be read from the table. Reads change nothing and go past the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::command::Mode;
use crate::effect::Grant;
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
use crate::lock::Lock;
use crate::reads;
use crate::scope::{Extra, scope_of};
use crate::session::Session;
use crate::table::LockTable;
use crate::value::StoredValue;

/// A lock as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// Its capacity; 1 for a lock that nobody counted.
    pub capacity: u32,
    /// The highest token granted for it. For a lock that was free for long it may be higher, never lower.
    pub last_token: Token,
    /// Who holds it.
    pub holders: Vec<HolderView>,
    /// The first of those who wait.
    pub queue: Vec<WaiterView>,
    /// How many wait.
    pub waiting: u32,
    /// How long a lock-delay still keeps it closed.
    pub closed_ms: u64,
}

/// A holder as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderView {
    /// Its session.
    pub session: SessionId,
    /// Its token.
    pub token: Token,
    /// Alone or shared.
    pub mode: Mode,
    /// Permits of a counted lock; 1 otherwise.
    pub permits: u32,
    /// Who it is; empty if its session has ended and the grant is about to be taken back.
    pub owner: SmolStr,
    /// How long it has held the lock, in cell time.
    pub held_ms: u64,
    /// The scope it belongs to; empty if none was named.
    pub scope: SmolStr,
    /// What a leader has announced; empty for a plain lock.
    pub value: SmolStr,
}

/// A waiting request as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterView {
    /// Its session.
    pub session: SessionId,
    /// 1 is next.
    pub position: u32,
    /// Alone or shared.
    pub mode: Mode,
    /// Who it is.
    pub owner: SmolStr,
    /// How long it has waited, in cell time.
    pub waited_ms: u64,
    /// The scope it belongs to; empty if none was named.
    pub scope: SmolStr,
    /// What a candidate stands for; empty for a plain lock.
    pub value: SmolStr,
}

/// How much there is in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sessions alive.
    pub sessions: u64,
    /// Grants held.
    pub grants: u64,
    /// Locks that are held, waited for or closed.
    pub locks: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Values.
    pub values: u64,
}

impl LockTable {
    /// The highest token that was ever granted for a lock, or at least no lower.
    pub fn last_token_of(&self, lock: &LockName) -> Token {
        self.locks.get(lock).map_or(self.forgotten, |lock| lock.last_token)
    }

    /// The highest token of the table.
    pub fn last_token(&self) -> Token {
        self.last_token
    }

    /// Whether this token holds this lock now.
    pub fn holds(&self, lock: &LockName, token: Token) -> bool {
        self.locks.get(lock).is_some_and(|lock| lock.holders.contains(token))
    }

    /// A session that is alive.
    pub fn session(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session)
    }

    /// All sessions that are alive.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// The sessions that are alive in the order of their ids, from this one: for a new leader that gives each its full
    /// time to live.
    pub fn sessions_from(&self, first: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.range(first..).map(|(id, session)| (*id, session))
    }

    /// What a session holds.
    pub fn grants_of(&self, session: SessionId) -> impl Iterator<Item = Grant> + '_ {
        self.grants
            .range((session, Token::default())..)
            .inspect(|_| reads::count(1))
            .take_while(move |((owner, _), _)| *owner == session)
            .map(|((_, token), held)| Grant { locks: held.locks.clone(), token: *token, mode: held.mode })
    }

    /// Requests that wait, in the order of their tickets, from this one; with the ids that they were given, if any.
    pub fn waiting_requests_from(
        &self,
        first: Ticket,
    ) -> impl Iterator<Item = (Ticket, SessionId, Option<&RequestId>)> {
        let waiters = self.waiters.range(first..);
        waiters.map(|(ticket, waiter)| (*ticket, waiter.session, waiter.request.as_ref()))
    }

    /// The ticket that was given last.
    pub fn last_ticket(&self) -> Ticket {
        self.last_ticket
    }

    /// A value.
    pub fn value(&self, key: &str) -> Option<&StoredValue> {
        self.values.get(key)
    }

    /// How much there is.
    pub fn counts(&self) -> Counts {
        Counts {
            sessions: self.sessions.len() as u64,
            grants: self.grants.len() as u64,
            locks: (self.locks.len() - self.free.len()) as u64,
            waiting: self.waiters.len() as u64,
            values: self.values.len() as u64,
        }
    }

    /// One lock, with at most `limit` holders and as many waiters. A lock that nobody knows is a free one.
    pub fn lock_view(&self, name: &LockName, now: CellTime, limit: usize) -> LockView {
        match self.locks.get(name) {
            Some(lock) => self.view(name, lock, now, limit),
            None => self.view(name, &Lock::new(self.forgotten), now, limit),
        }
    }

    /// Locks in use whose names start with `prefix`, in order of name, from the one behind `after`. Free locks are skipped:
    /// [`FREE_LOCKS_REMEMBERED_MAX`](crate::limits::FREE_LOCKS_REMEMBERED_MAX) at most, which took 8 ms on a release build.
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
        let owner = |session: SessionId| {
            self.sessions.get(&session).map_or_else(SmolStr::default, |session| session.owner.clone())
        };
        let counted = lock.capacity != crate::admission::UNCOUNTED;
        let holders =
            lock.holders.iter().take(limit).inspect(|_| reads::count(1)).filter_map(|(token, session)| {
                let held = self.grants.get(&(session, token))?;
                Some(HolderView {
                    session,
                    token,
                    mode: held.mode,
                    permits: if counted { held.units } else { 1 },
                    owner: owner(session),
                    held_ms: now.ms_since(held.since),
                    scope: self.scope_name(held.extra.as_ref()),
                    value: value_of(held.extra.as_ref()),
                })
            });
        let line = self
            .queues
            .range((name.clone(), Ticket::default())..)
            .take_while(|(lock, _)| lock == name)
            .take(limit)
            .inspect(|_| reads::count(1));
        let queue = line.zip(1..).filter_map(|((_, ticket), position)| {
            let waiter = self.waiters.get(ticket)?;
            Some(WaiterView {
                session: waiter.session,
                position,
                mode: waiter.mode,
                owner: owner(waiter.session),
                waited_ms: now.ms_since(waiter.since),
                scope: self.scope_name(waiter.extra.as_ref()),
                value: value_of(waiter.extra.as_ref()),
            })
        });
        LockView {
            name: name.clone(),
            capacity: lock.capacity_shown(),
            last_token: lock.last_token,
            holders: holders.collect(),
            queue: queue.collect(),
            waiting: lock.waiting,
            closed_ms: lock.closed_until.ms_since(now),
        }
    }

    fn scope_name(&self, extra: Option<&Arc<Extra>>) -> SmolStr {
        let scope = scope_of(extra).and_then(|no| self.scopes.all.get(&no));
        scope.map(|scope| scope.name.clone()).unwrap_or_default()
    }

    /// Checks what must always be true, for tests: every index agrees with what it indexes.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (counted, recounted) = (self.state_bytes(), self.count_state_bytes());
        if counted != recounted {
            return Err(format!("the table counts {counted} bytes of state, and has {recounted}"));
        }
        let mut used: BTreeMap<&LockName, u64> = BTreeMap::new();
        for ((session, token), held) in &self.grants {
            for name in held.locks.as_slice() {
                *used.entry(name).or_default() += u64::from(held.units);
                let lock = self.locks.get(name).ok_or(format!("{name} is held but unknown"))?;
                if !lock.holders.iter().any(|holder| holder == (*token, *session)) {
                    return Err(format!("{name} does not know its holder {token}"));
                }
                if lock.last_token < *token {
                    return Err(format!("{name} has a last token below {token}"));
                }
            }
        }
        for (name, lock) in &self.locks {
            if u64::from(lock.used) != used.get(name).copied().unwrap_or(0) {
                return Err(format!("{name} counts {} units, its holders have others", lock.used));
            }
            if lock.used > lock.capacity {
                return Err(format!("{name} has more holders than capacity"));
            }
            let line = self.queues.iter().filter(|(lock, _)| lock == name).count();
            if lock.waiting as usize != line {
                return Err(format!("{name} counts {} waiters, {line} stand in line", lock.waiting));
            }
            if lock.is_free() != lock.freed.is_some() {
                return Err(format!("{name} is free and not remembered as such, or the other way round"));
            }
            if lock.freed.is_some_and(|number| self.free.get(&number) != Some(name)) {
                return Err(format!("{name} is not where it should be among the free ones"));
            }
            let head = self.head(name).and_then(|ticket| self.waiters.get(&ticket));
            if let Some(waiter) = head
                && waiter.locks.as_slice().len() == 1
                && self.sessions.contains_key(&waiter.session)
                && lock.admits(waiter.units)
                && !self.backlog.has_admit(name)
                && !self.head(name).is_some_and(|ticket| self.backlog.has_cancel(ticket))
            {
                return Err(format!("{name} has room, and the first in line still waits"));
            }
        }
        if self.free.len() != self.locks.values().filter(|lock| lock.freed.is_some()).count() {
            return Err("there are more locks among the free ones than are free".into());
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
        if self.waiters.len() != self.waits.len() {
            return Err("waits of sessions and waiters differ".into());
        }
        Ok(())
    }
}

fn value_of(extra: Option<&Arc<Extra>>) -> SmolStr {
    extra.and_then(|extra| extra.value.clone()).unwrap_or_default()
}
