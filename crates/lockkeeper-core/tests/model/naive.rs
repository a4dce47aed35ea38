//! A naive model of the lock table: lists, linear scans, no indexes, and an explicit rule of admission. It shares the types
//! of the contract with the real table (commands, answers, effects, views), but none of its code. It has no bounds:
//! histories stay far below them.

#[path = "naive_view.rs"]
mod view;

use lockkeeper_core::{
    Acquire, Answer, Applied, Batch, CellTime, Command, Counts, Effect, Fence, Freed, Grant, HolderView,
    LockName, LockView, Locks, Mode, Refusal, Reply, RequestId, SessionEnd, SessionId, Ticket, Token, Wait,
    WaiterView, Waiting,
};

#[derive(Default)]
pub(crate) struct Naive {
    now: u64,
    last_token: u64,
    last_ticket: u64,
    sessions: Vec<LiveSession>,
    ended: Vec<(SessionId, SessionEnd)>,
    holds: Vec<Hold>,
    queue: Vec<Waiter>,
    closed: Vec<Closed>,
    last_tokens: Vec<(LockName, u64)>,
    remembered: Vec<(SessionId, RequestId, Remembered)>,
    values: Vec<Value>,
    removed_version: u64,
    effects: Vec<Effect>,
}

struct LiveSession {
    id: SessionId,
    owner: String,
    version: u64,
}

struct Hold {
    session: SessionId,
    token: u64,
    left: Vec<LockName>,
    demand: Demand,
    mode: Mode,
    since: u64,
    delay_ms: u64,
    request: Option<RequestId>,
}

struct Waiter {
    ticket: u64,
    session: SessionId,
    locks: Vec<LockName>,
    demand: Demand,
    mode: Mode,
    since: u64,
    until: Option<u64>,
    delay_ms: u64,
    request: Option<RequestId>,
}

/// What a request takes of a lock: an uncounted one exclusively or shared, or permits of a counted one.
#[derive(Clone, Copy, PartialEq)]
enum Demand {
    Exclusive,
    Shared,
    Permits { taken: u32, capacity: u32 },
}

/// A lock-delay, which also keeps the capacity of the lock.
struct Closed {
    lock: LockName,
    until: u64,
    capacity: Option<u32>,
}

enum Remembered {
    Waits(u64, Vec<LockName>),
    Granted(Vec<LockName>, u64, Mode),
    Refused(Refusal),
}

struct Value {
    key: String,
    bytes: Vec<u8>,
    version: u64,
    token: u64,
}

/// An action that is due. At the same time, waits come before lock-delays.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Wait(u64),
    Reopen(LockName),
}

impl Naive {
    pub(crate) fn apply(&mut self, batch: &Batch) -> Applied {
        self.now = self.now.max(batch.now.0);
        while let Some((_, due)) = self.next_due().filter(|(when, _)| *when <= self.now) {
            match due {
                Due::Wait(ticket) => {
                    let lock = self.waiter(ticket).locks[0].clone();
                    self.end_wait(ticket, Refusal::Timeout { lock });
                }
                Due::Reopen(name) => {
                    self.closed.retain(|closed| closed.lock != name);
                    self.admit();
                }
            }
        }
        let answers = batch.commands.iter().map(|command| self.run(command)).collect();
        for (session, why) in std::mem::take(&mut self.ended) {
            self.free_remains(session, why);
        }
        Applied { answers, effects: std::mem::take(&mut self.effects) }
    }

    fn run(&mut self, command: &Command) -> Answer {
        match command {
            Command::OpenSession { session, ttl_ms, owner, .. } => self.open(*session, *ttl_ms, owner),
            Command::CloseSession { session } => {
                if !self.alive(*session) {
                    return Err(Refusal::SessionLost);
                }
                self.end(*session, SessionEnd::Closed);
                Ok(Reply::Done)
            }
            Command::ExpireSession { session, version } => {
                match self.sessions.iter().find(|alive| alive.id == *session) {
                    None => return Err(Refusal::SessionLost),
                    Some(alive) if alive.version == *version => self.end(*session, SessionEnd::Expired),
                    Some(_) => self.effects.push(Effect::ExpiryStale { session: *session }),
                }
                Ok(Reply::Done)
            }
            Command::Acquire(request) => self.acquire(request),
            Command::Cancel { session, what } => self.cancel(*session, what),
            Command::Release { session, lock, token, forget } => {
                self.release(*session, lock, token.0, *forget)
            }
            Command::ForceRelease { lock, .. } => self.force_release(lock),
            Command::PutValue { key, value, fence, if_version } => {
                let token = self.may_write(key, fence.as_ref(), *if_version)?;
                let old = self.values.iter().position(|value| value.key == key.as_str());
                let version = old.map_or(self.removed_version, |at| self.values.remove(at).version) + 1;
                self.values.push(Value { key: key.to_string(), bytes: value.to_vec(), version, token });
                Ok(Reply::Put { version })
            }
            Command::DeleteValue { key, fence, if_version } => {
                self.may_write(key, fence.as_ref(), *if_version)?;
                if let Some(at) = self.values.iter().position(|value| value.key == key.as_str()) {
                    self.removed_version = self.removed_version.max(self.values.remove(at).version);
                }
                Ok(Reply::Done)
            }
            // Scopes, hand-overs, rates and access rules have their own tests.
            Command::HandOver { .. }
            | Command::TakeRate(_)
            | Command::ChangeAccess { .. }
            | Command::AuditNote { .. } => unreachable!("no history has them"),
            Command::Tick | Command::RaiseCellVersion { .. } => Ok(Reply::Done),
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => Ok(Reply::Done),
        }
    }

    // Sessions.

    fn alive(&self, session: SessionId) -> bool {
        self.sessions.iter().any(|alive| alive.id == session)
    }

    fn touch_session(&mut self, session: SessionId) -> Result<(), Refusal> {
        let alive = self.sessions.iter_mut().find(|alive| alive.id == session);
        alive.ok_or(Refusal::SessionLost)?.version += 1;
        Ok(())
    }

    fn open(&mut self, session: SessionId, ttl_ms: u64, owner: &str) -> Answer {
        if self.alive(session) || self.has_remains(session) {
            return Err(Refusal::invalid(""));
        }
        self.sessions.push(LiveSession { id: session, owner: owner.to_owned(), version: 1 });
        Ok(Reply::SessionOpened { ttl_ms, version: 1 })
    }

    fn has_remains(&self, session: SessionId) -> bool {
        self.holds.iter().any(|hold| hold.session == session)
            || self.queue.iter().any(|waiter| waiter.session == session)
            || self.remembered.iter().any(|(owner, _, _)| *owner == session)
    }

    fn end(&mut self, session: SessionId, why: SessionEnd) {
        self.sessions.retain(|alive| alive.id != session);
        if self.has_remains(session) {
            self.ended.push((session, why));
        }
        self.effects.push(Effect::SessionEnded { session, why });
    }

    fn free_remains(&mut self, session: SessionId, why: SessionEnd) {
        let freed = match why {
            SessionEnd::Closed => Freed::SessionClosed,
            SessionEnd::Expired => Freed::SessionExpired,
        };
        let waits: Vec<u64> = self
            .queue
            .iter()
            .filter(|waiter| waiter.session == session)
            .map(|waiter| waiter.ticket)
            .collect();
        for ticket in waits {
            self.end_wait(ticket, Refusal::SessionLost);
        }
        let mut held: Vec<(u64, LockName)> = Vec::new();
        for hold in self.holds.iter().filter(|hold| hold.session == session) {
            held.extend(hold.left.iter().map(|name| (hold.token, name.clone())));
        }
        held.sort();
        for (token, name) in held {
            self.free(token, &name, freed);
        }
        self.remembered.retain(|(owner, _, _)| *owner != session);
    }

    // Locks.

    fn acquire(&mut self, request: &Acquire) -> Answer {
        self.touch_session(request.session)?;
        if let Some(answer) = self.remembered_answer(request) {
            return answer;
        }
        let answer = self.acquire_new(request);
        if let Err(refusal) = &answer {
            self.remember(request.session, request.request.as_ref(), Remembered::Refused(refusal.clone()));
        }
        answer
    }

    fn remembered_answer(&self, request: &Acquire) -> Option<Answer> {
        let locks = request.locks.as_slice().to_vec();
        let again = |same: bool, answer: Answer| if same { answer } else { Err(Refusal::invalid("")) };
        match self.remembered_outcome(request.session, request.request.as_ref()) {
            Some(Remembered::Waits(ticket, requested)) => {
                Some(again(*requested == locks, Ok(Reply::Queued { ticket: Ticket(*ticket) })))
            }
            Some(Remembered::Granted(requested, token, mode)) => {
                let hold = self.holds.iter().find(|hold| hold.token == *token);
                let gone = requested.iter().find(|name| hold.is_some_and(|hold| !hold.left.contains(name)));
                let answer = match gone {
                    Some(name) => Err(Refusal::NotHeld { lock: name.clone(), token: Token(*token) }),
                    None => Ok(Reply::Granted(grant(requested, *token, *mode))),
                };
                Some(again(*requested == locks, answer))
            }
            Some(Remembered::Refused(refusal)) => Some(Err(refusal.clone())),
            None => None,
        }
    }

    fn acquire_new(&mut self, request: &Acquire) -> Answer {
        let locks = request.locks.as_slice().to_vec();
        let demands: Result<Vec<Demand>, Refusal> =
            locks.iter().map(|name| self.demand(name, request)).collect();
        let demands = demands?;
        let demand = demands[0];
        if demands.iter().any(|other| *other != demand) {
            return Err(Refusal::invalid(""));
        }
        let blocked = locks.iter().find(|name| {
            self.queue.iter().any(|waiter| waiter.locks.contains(name)) || !self.has_room(name, demand)
        });
        let Some(blocked) = blocked.cloned() else {
            self.last_token += 1;
            let hold = Hold {
                session: request.session,
                token: self.last_token,
                left: locks,
                demand,
                mode: request.mode,
                since: self.now,
                delay_ms: request.lock_delay_ms,
                request: request.request.clone(),
            };
            return Ok(Reply::Granted(self.add_grant(hold)));
        };
        if matches!(request.wait, Wait::No | Wait::ForMs(0)) {
            return Err(Refusal::Busy { lock: blocked });
        }
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        self.remember(request.session, request.request.as_ref(), Remembered::Waits(ticket, locks.clone()));
        self.queue.push(Waiter {
            ticket,
            session: request.session,
            locks,
            demand,
            mode: request.mode,
            since: self.now,
            until: match request.wait {
                Wait::ForMs(ms) => Some(self.now + ms * 1_000),
                _ => None,
            },
            delay_ms: request.lock_delay_ms,
            request: request.request.clone(),
        });
        Ok(Reply::Queued { ticket: Ticket(ticket) })
    }

    /// The capacity of a counted lock in use; `None` if it is uncounted or free.
    fn capacity(&self, name: &LockName) -> Option<u32> {
        let of_holds = self.holds.iter().filter(|hold| hold.left.contains(name)).map(|hold| hold.demand);
        let of_queue =
            self.queue.iter().filter(|waiter| waiter.locks.contains(name)).map(|waiter| waiter.demand);
        let closed = self.closed.iter().find(|closed| closed.lock == *name);
        of_holds.chain(of_queue).find_map(Demand::capacity).or(closed.and_then(|closed| closed.capacity))
    }

    fn in_use(&self, name: &LockName) -> bool {
        self.holds.iter().any(|hold| hold.left.contains(name))
            || self.queue.iter().any(|waiter| waiter.locks.contains(name))
            || self.is_closed(name)
    }

    fn is_closed(&self, name: &LockName) -> bool {
        self.closed.iter().any(|closed| closed.lock == *name)
    }

    fn demand(&self, name: &LockName, request: &Acquire) -> Result<Demand, Refusal> {
        let requested = request.capacity.map(|capacity| (capacity > 1).then_some(capacity));
        let capacity = match requested {
            Some(requested) if self.in_use(name) && requested != self.capacity(name) => {
                return Err(Refusal::invalid(""));
            }
            Some(requested) => requested,
            None => self.capacity(name),
        };
        match (capacity, request.permits, request.mode) {
            (_, Some(0), _) => Err(Refusal::invalid("")),
            (None, Some(2..), _) => Err(Refusal::invalid("")),
            (None, _, Mode::Exclusive) => Ok(Demand::Exclusive),
            (None, _, Mode::Shared) => Ok(Demand::Shared),
            (Some(capacity), Some(taken), _) if taken > capacity => Err(Refusal::invalid("")),
            (Some(capacity), Some(taken), _) => Ok(Demand::Permits { taken, capacity }),
            (Some(capacity), None, Mode::Exclusive) => Ok(Demand::Permits { taken: capacity, capacity }),
            (Some(capacity), None, Mode::Shared) => Ok(Demand::Permits { taken: 1, capacity }),
        }
    }

    fn has_room(&self, name: &LockName, demand: Demand) -> bool {
        let mut holders = self.holds.iter().filter(|hold| hold.left.contains(name)).map(|hold| hold.demand);
        let room = match demand {
            Demand::Exclusive => holders.next().is_none(),
            Demand::Shared => holders.all(|holder| holder == Demand::Shared),
            Demand::Permits { taken, capacity } => {
                let used: u32 = holders
                    .map(|holder| match holder {
                        Demand::Permits { taken, .. } => taken,
                        Demand::Exclusive | Demand::Shared => capacity,
                    })
                    .sum();
                used + taken <= capacity
            }
        };
        room && !self.is_closed(name)
    }

    /// Grants the first waiting request that can be granted, until there is none.
    fn admit(&mut self) {
        while let Some(at) = self.queue.iter().position(|waiter| self.can_grant(waiter)) {
            let waiter = self.queue.remove(at);
            self.last_token += 1;
            let granted = self.add_grant(Hold {
                session: waiter.session,
                token: self.last_token,
                left: waiter.locks,
                demand: waiter.demand,
                mode: waiter.mode,
                since: self.now,
                delay_ms: waiter.delay_ms,
                request: waiter.request.clone(),
            });
            self.effects.push(Effect::Granted {
                session: waiter.session,
                ticket: Ticket(waiter.ticket),
                request: waiter.request,
                grant: granted,
                waited_ms: (self.now - waiter.since) / 1_000,
            });
        }
    }

    fn can_grant(&self, waiter: &Waiter) -> bool {
        let is_first = |name: &LockName| {
            !self.queue.iter().any(|other| other.ticket < waiter.ticket && other.locks.contains(name))
        };
        self.alive(waiter.session)
            && waiter.locks.iter().all(|name| is_first(name) && self.has_room(name, waiter.demand))
    }

    fn add_grant(&mut self, hold: Hold) -> Grant {
        for name in &hold.left {
            self.set_last_token(name, hold.token);
        }
        let granted = Remembered::Granted(hold.left.clone(), hold.token, hold.mode);
        self.remember(hold.session, hold.request.as_ref(), granted);
        let grant = grant(&hold.left, hold.token, hold.mode);
        self.holds.push(hold);
        grant
    }

    /// Takes one lock out of a hold, and removes the hold with its last lock.
    fn free(&mut self, token: u64, name: &LockName, why: Freed) {
        let hold = self.holds.iter_mut().find(|hold| hold.token == token).expect("it is held");
        hold.left.retain(|lock| lock != name);
        let (session, held_ms, delay_ms) = (hold.session, (self.now - hold.since) / 1_000, hold.delay_ms);
        let capacity = hold.demand.capacity();
        self.holds.retain(|hold| !hold.left.is_empty());
        if why == Freed::SessionExpired && delay_ms > 0 {
            let before =
                self.closed.iter().find(|closed| closed.lock == *name).map_or(0, |closed| closed.until);
            let until = before.max(self.now + delay_ms * 1_000);
            self.closed.retain(|closed| closed.lock != *name);
            self.closed.push(Closed { lock: name.clone(), until, capacity });
        }
        self.effects.push(Effect::Freed { session, lock: name.clone(), token: Token(token), why, held_ms });
        self.admit();
    }

    fn holder(&self, session: SessionId, token: u64, lock: &LockName) -> Option<&Hold> {
        self.holds
            .iter()
            .find(|hold| hold.session == session && hold.token == token && hold.left.contains(lock))
    }

    fn release(&mut self, session: SessionId, lock: &LockName, token: u64, forget: bool) -> Answer {
        self.touch_session(session)?;
        let Some(hold) = self.holder(session, token, lock) else {
            return Err(Refusal::NotHeld { lock: lock.clone(), token: Token(token) });
        };
        let (last, request) = (hold.left.len() == 1, hold.request.clone());
        self.free(token, lock, Freed::Released);
        if last && forget {
            self.remembered.retain(|(owner, id, _)| *owner != session || Some(id) != request.as_ref());
        }
        Ok(Reply::Done)
    }

    fn force_release(&mut self, name: &LockName) -> Answer {
        self.last_token += 1;
        self.set_last_token(name, self.last_token);
        self.closed.retain(|closed| closed.lock != *name);
        let mut holders: Vec<u64> =
            self.holds.iter().filter(|hold| hold.left.contains(name)).map(|hold| hold.token).collect();
        holders.sort();
        for token in &holders {
            let hold = self.holds.iter().find(|hold| hold.token == *token).expect("it is held");
            let (session, last, request) = (hold.session, hold.left.len() == 1, hold.request.clone());
            self.free(*token, name, Freed::Forced);
            if last {
                let refusal = Refusal::NotHeld { lock: name.clone(), token: Token(*token) };
                self.remember(session, request.as_ref(), Remembered::Refused(refusal));
            }
        }
        self.admit();
        Ok(Reply::Forced { released: holders.len() as u32, last_token: Token(self.last_token_of(name)) })
    }

    fn cancel(&mut self, session: SessionId, what: &Waiting) -> Answer {
        self.touch_session(session)?;
        match what {
            Waiting::Ticket(ticket) => {
                if self.queue.iter().any(|waiter| waiter.ticket == ticket.0 && waiter.session == session) {
                    self.end_wait(ticket.0, Refusal::Cancelled);
                }
            }
            Waiting::Request(id) => match self.remembered_outcome(session, Some(id)) {
                Some(Remembered::Waits(ticket, _)) => {
                    let ticket = *ticket;
                    self.end_wait(ticket, Refusal::Cancelled);
                }
                Some(Remembered::Granted(_, token, _)) => {
                    let token = *token;
                    let left =
                        self.holds.iter().find(|hold| hold.token == token).map(|hold| hold.left.clone());
                    let Some(left) = left else { return Ok(Reply::Done) };
                    for name in left {
                        self.free(token, &name, Freed::Cancelled);
                    }
                    self.remember(session, Some(id), Remembered::Refused(Refusal::Cancelled));
                }
                Some(Remembered::Refused(_)) => {}
                None => self.remember(session, Some(id), Remembered::Refused(Refusal::Cancelled)),
            },
        }
        Ok(Reply::Done)
    }

    fn waiter(&self, ticket: u64) -> &Waiter {
        self.queue.iter().find(|waiter| waiter.ticket == ticket).expect("it waits")
    }

    fn end_wait(&mut self, ticket: u64, refusal: Refusal) {
        let at = self.queue.iter().position(|waiter| waiter.ticket == ticket).expect("it waits");
        let Waiter { session, request, mode, since, .. } = self.queue.remove(at);
        let waited_ms = (self.now - since) / 1_000;
        self.remember(session, request.as_ref(), Remembered::Refused(refusal.clone()));
        self.effects.push(Effect::Ended {
            session,
            ticket: Ticket(ticket),
            request,
            refusal,
            mode,
            waited_ms,
        });
        self.admit();
    }

    fn next_due(&self) -> Option<(u64, Due)> {
        let waits = self.queue.iter().filter_map(|waiter| Some((waiter.until?, Due::Wait(waiter.ticket))));
        let closed = self.closed.iter().map(|closed| (closed.until, Due::Reopen(closed.lock.clone())));
        waits.chain(closed).min()
    }

    // Remembered outcomes.

    fn remembered_outcome(&self, session: SessionId, request: Option<&RequestId>) -> Option<&Remembered> {
        let request = request?;
        let found = self.remembered.iter().find(|(owner, id, _)| *owner == session && id == request);
        found.map(|(_, _, outcome)| outcome)
    }

    fn remember(&mut self, session: SessionId, request: Option<&RequestId>, outcome: Remembered) {
        let Some(request) = request else { return };
        self.remembered.retain(|(owner, id, _)| *owner != session || id != request);
        self.remembered.push((session, request.clone(), outcome));
    }

    fn last_token_of(&self, name: &LockName) -> u64 {
        self.last_tokens.iter().find(|(lock, _)| lock == name).map_or(0, |(_, token)| *token)
    }

    fn set_last_token(&mut self, name: &LockName, token: u64) {
        self.last_tokens.retain(|(lock, _)| lock != name);
        self.last_tokens.push((name.clone(), token));
    }

    // Values.

    fn may_write(&self, key: &str, fence: Option<&Fence>, if_version: Option<u64>) -> Result<u64, Refusal> {
        let old = self.values.iter().find(|value| value.key == key);
        let (version, highest) = old.map_or((0, 0), |old| (old.version, old.token));
        if let Some(fence) = fence {
            let last = self.last_token_of(&fence.lock);
            if fence.token.0 == 0 || fence.token.0 != last || fence.token.0 < highest {
                return Err(Refusal::StaleToken { last_token: Token(last.max(highest)) });
            }
        }
        if if_version.is_some_and(|expected| expected != version) {
            return Err(Refusal::VersionMismatch { version });
        }
        Ok(fence.map_or(highest, |fence| fence.token.0))
    }
}

impl Demand {
    fn capacity(self) -> Option<u32> {
        match self {
            Demand::Permits { capacity, .. } => Some(capacity),
            Demand::Exclusive | Demand::Shared => None,
        }
    }
}

impl LiveSession {
    fn seen(&self, table: &Naive) -> (SessionId, u64, u32, u32) {
        let grants = table.holds.iter().filter(|hold| hold.session == self.id).count();
        let waits = table.queue.iter().filter(|waiter| waiter.session == self.id).count();
        (self.id, self.version, grants as u32, waits as u32)
    }
}

fn grant(names: &[LockName], token: u64, mode: Mode) -> Grant {
    Grant { locks: Locks::many(names.iter().cloned()), token: Token(token), mode }
}
