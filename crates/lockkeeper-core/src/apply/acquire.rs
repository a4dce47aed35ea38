//! Acquires one or several locks, or cancels a wait.

use std::sync::Arc;

use crate::admission::{Demand, UNCOUNTED};
use crate::bounds::bounds;
use crate::command::{Acquire, Locks, Wait, Waiting};
use crate::deadlock::Search;
use crate::effect::{Answer, Freed, Reply};
use crate::id::{LockName, RequestId, SessionId, Ticket, Token};
use crate::limits;
use crate::lock::{Held, Lock};
use crate::mutation::{self, Mutation};
use crate::queue::Waiter;
use crate::refusal::Refusal;
use crate::scope::{OptionalAttributes, Policy, ScopeNo, scope_of};
use crate::session::Remembered;
use crate::state_bytes::growth;
use crate::table::LockTable;
use crate::work::{Task, too_expensive};

impl LockTable {
    pub(crate) fn acquire(&mut self, request: &Acquire) -> Answer {
        let Some(id) = &request.request else {
            self.touch_session(request.session)?;
            return self.acquire_new(request);
        };
        check_request_id(id)?;
        self.touch_session(request.session)?;
        if let Some(answer) = self.remembered_answer(request, id) {
            return answer;
        }
        let answer = self.acquire_new(request);
        if let Err(refusal) = &answer
            && !is_forgotten(refusal)
        {
            // A late copy of a refused request must not be granted: its caller has moved on (S5).
            self.settle(request.session, id.clone(), Remembered::Refused(refusal.clone()));
        }
        answer
    }

    /// Handles a request that is not a retry.
    fn acquire_new(&mut self, request: &Acquire) -> Answer {
        check_shape(request)?;
        self.check_token_left()?;
        self.check_state_bytes(growth(request))?;
        let (grants, waits) =
            self.sessions.get(&request.session).map_or((0, 0), |session| (session.grants, session.waits));
        if grants >= bounds().grants_per_session {
            return Err(Refusal::limit(format!(
                "the session holds {} locks, its limit: release some first",
                bounds().grants_per_session
            )));
        }
        let Some(name) = &request.scope else { return self.acquire_in_scope(request, None, waits) };
        let scope = self.enter_scope(request.session, name, request.locks.as_slice().len())?;
        let answer = self.acquire_in_scope(request, Some(scope), waits);
        self.note_if_idle(scope);
        answer
    }

    fn acquire_in_scope(&mut self, request: &Acquire, scope: Option<ScopeNo>, waits: u32) -> Answer {
        let (mut demand, mut blocked) = self.check_availability(request)?;
        if let (Some(scope), Some(_)) = (scope, blocked) {
            self.apply_age_policy(request, scope, demand)?;
            (demand, blocked) = self.check_availability(request)?;
        }
        let extra =
            OptionalAttributes { scope, value: request.value.clone(), policy: request.policy }.shared();
        if self.locks.len() - self.free.len() + request.locks.as_slice().len() > bounds().locks {
            return Err(Refusal::limit(format!(
                "the cell has {} locks in use, its limit: try again when some are free",
                bounds().locks
            )));
        }
        self.check_lock_quota(&request.locks)?;
        if let Some(blocked) = blocked {
            return self.wait_or_refuse(request, demand, waits, blocked, extra);
        }
        // A free lock is uncounted. Uncounted locks are opened by their grant.
        if demand.capacity != UNCOUNTED {
            self.open_all(&request.locks, demand);
        }
        let grant = self.grant(
            request.session,
            Held {
                locks: request.locks.clone(),
                mode: request.mode,
                units: demand.units,
                since: self.now,
                lock_delay_ms: request.lock_delay_ms,
                request: request.request.clone(),
                extra,
            },
        );
        Ok(Reply::Granted(grant))
    }

    /// The answer to a retry of an earlier request (S5).
    fn remembered_answer(&self, request: &Acquire, id: &RequestId) -> Option<Answer> {
        let other_lock = || {
            Err(Refusal::invalid(format!(
                "request \"{id}\" of this session was used for another lock: use a new id for a new request"
            )))
        };
        if mutation::is_on(Mutation::ForgetRequest) {
            return None;
        }
        Some(match self.requests.get(&(request.session, id.clone()))? {
            Remembered::Waiting(ticket) => match self.waiters.get(ticket) {
                Some(waiter) if waiter.locks == request.locks => Ok(Reply::Queued { ticket: *ticket }),
                _ => other_lock(),
            },
            Remembered::Granted(grant) if grant.locks == request.locks => {
                match self.grants.get(&(request.session, grant.token)) {
                    // Some of the locks were lost or released since: the grant is no longer complete.
                    Some(held) if held.locks != grant.locks => {
                        let left = held.locks.as_slice();
                        let gone =
                            grant.locks.as_slice().iter().find(|name| left.binary_search(name).is_err());
                        Err(Refusal::NotHeld { lock: gone.cloned().unwrap_or_default(), token: grant.token })
                    }
                    _ => Ok(Reply::Granted(grant.clone())),
                }
            }
            Remembered::Granted(_) => other_lock(),
            Remembered::Refused(refusal) => Err(refusal.clone()),
        })
    }

    /// The demand of a request on each of its locks, and the first lock that cannot be granted at once because it has no
    /// room or has waiters. Requests for several locks always take whole locks, so all have the same demand.
    fn check_availability<'a>(
        &self,
        request: &'a Acquire,
    ) -> Result<(Demand, Option<&'a LockName>), Refusal> {
        let unused = Lock::new(self.forgotten);
        let mut demand: Option<(&LockName, Demand)> = None;
        let mut blocked = None;
        for name in request.locks.as_slice() {
            let lock = self.locks.get(name).unwrap_or(&unused);
            let this = lock.demand(request)?;
            if let Some((other, so_far)) = demand
                && so_far != this
            {
                let counted = if this.capacity == UNCOUNTED { other } else { name };
                return Err(Refusal::invalid(format!(
                    "\"{counted}\" is in use as a counted lock: it cannot be acquired together with others now"
                )));
            }
            demand = Some((name, this));
            let open = lock.is_free() || (lock.waiting == 0 && lock.admits(this.units));
            if blocked.is_none() && !open {
                blocked = Some(name);
            }
        }
        let (_, demand) = demand.ok_or_else(|| Refusal::invalid("no lock is named: name at least one"))?;
        Ok((demand, blocked))
    }

    fn wait_or_refuse(
        &mut self,
        request: &Acquire,
        demand: Demand,
        waits: u32,
        blocked: &LockName,
        extra: Option<Arc<OptionalAttributes>>,
    ) -> Answer {
        let until = match request.wait {
            Wait::No | Wait::ForMs(0) => return Err(Refusal::Busy { lock: blocked.clone() }),
            Wait::ForMs(ms) => Some(self.now.plus_ms(ms)),
            Wait::Forever => None,
        };
        if waits >= bounds().waits_per_session {
            return Err(Refusal::limit(format!(
                "this session already has {} waiting requests, its limit: cancel some first",
                bounds().waits_per_session
            )));
        }
        let full =
            request.locks.as_slice().iter().find(|name| {
                self.locks.get(*name).is_some_and(|lock| lock.waiting >= bounds().waiters_per_lock)
            });
        if let Some(name) = full {
            return Err(Refusal::limit(format!(
                "{} requests already wait for \"{name}\", its limit: try again later",
                bounds().waiters_per_lock
            )));
        }
        self.check_waiter_quota(&request.locks)?;
        self.open_all(&request.locks, demand);
        let ticket = self.enqueue(Waiter {
            session: request.session,
            request: request.request.clone(),
            locks: request.locks.clone(),
            mode: request.mode,
            units: demand.units,
            since: self.now,
            until,
            lock_delay_ms: request.lock_delay_ms,
            extra: extra.clone(),
        });
        if let Some(scope) = scope_of(extra.as_ref()) {
            match self.search(scope, ticket, Some(ticket)) {
                Search::Done(None) => {}
                // The request is last in its queues: withdrawing it admits no other.
                Search::Done(Some(cycle)) => {
                    self.withdraw(request, ticket);
                    return Err(Refusal::Deadlock { cycle: cycle.into() });
                }
                Search::TooExpensive => {
                    self.withdraw(request, ticket);
                    return Err(too_expensive("the search for deadlocks"));
                }
                Search::Unfinished => self.backlog.push(Task::Search(ticket)),
            }
        }
        Ok(Reply::Queued { ticket })
    }

    /// Removes a request that has just joined its queues. The caller remembers its answer.
    fn withdraw(&mut self, request: &Acquire, ticket: Ticket) {
        self.leave(ticket);
        if let Some(id) = &request.request {
            self.requests.remove(&(request.session, id.clone()));
        }
    }

    fn open_all(&mut self, locks: &Locks, demand: Demand) {
        for name in locks.as_slice() {
            self.open_lock(name, |lock| lock.capacity = demand.capacity);
        }
    }

    /// Cancels a request whose caller no longer wants it, whether it waits or was granted. Idempotent.
    pub(crate) fn cancel(&mut self, session: SessionId, what: &Waiting) -> Answer {
        self.touch_session(session)?;
        let ticket = match what {
            Waiting::Ticket(ticket) => *ticket,
            Waiting::Request(id) => match self.requests.get(&(session, id.clone())) {
                Some(Remembered::Waiting(ticket)) => *ticket,
                Some(Remembered::Granted(grant)) => {
                    let token = grant.token;
                    self.cancel_grant(session, token);
                    return Ok(Reply::Done);
                }
                Some(Remembered::Refused(_)) => return Ok(Reply::Done),
                None => {
                    // The cancel overtook its acquire, or the acquire was lost. If the acquire still arrives, it
                    // must not be granted: its caller is gone.
                    self.settle(session, id.clone(), Remembered::Refused(Refusal::Cancelled));
                    return Ok(Reply::Done);
                }
            },
        };
        let Some(waiter) = self.waiters.get(&ticket).filter(|waiter| waiter.session == session) else {
            return Ok(Reply::Done);
        };
        // Leaving one queue costs no more than any other command.
        match waiter.locks.as_slice().len() > 1 && self.work.is_exhausted() {
            true => self.backlog.push(Task::CancelWait(ticket)),
            false => self.end_wait(ticket, Refusal::Cancelled),
        }
        Ok(Reply::Done)
    }

    /// Frees all locks of a grant: the first at once, the others within the budget of the entry.
    pub(crate) fn cancel_grant(&mut self, session: SessionId, token: Token) {
        while let Some(held) = self.grants.get(&(session, token))
            && let Some(name) = held.locks.as_slice().first().cloned()
        {
            if let Some(Some(request)) = self.free_one(session, &name, token, Freed::Cancelled) {
                self.settle(session, request, Remembered::Refused(Refusal::Cancelled));
            }
            if self.work.is_exhausted() && self.grants.contains_key(&(session, token)) {
                self.backlog.push(Task::CancelGrant(session, token));
                return;
            }
        }
    }
}

/// Whether a bug that was put back forgets this refusal.
fn is_forgotten(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Invalid(_) | Refusal::Limit(_) if mutation::is_on(Mutation::ForgetInvalid) => true,
        Refusal::Limit(_) if mutation::is_on(Mutation::ForgetLimits) => true,
        _ => mutation::is_on(Mutation::ForgetRefusals),
    }
}

fn check_request_id(id: &RequestId) -> Result<(), Refusal> {
    limits::check_length("request id", id.len(), limits::REQUEST_BYTES_MAX)?;
    if id.is_empty() {
        return Err(Refusal::invalid("the request id is empty: leave it out, or choose a unique one"));
    }
    Ok(())
}

fn check_shape(request: &Acquire) -> Result<(), Refusal> {
    let locks = request.locks.as_slice();
    if locks.is_empty() {
        return Err(Refusal::invalid("no lock is named: name at least one"));
    }
    if locks.len() > limits::LOCKS_PER_REQUEST_MAX {
        return Err(Refusal::limit(format!(
            "the request names {} locks; at most {} are allowed",
            locks.len(),
            limits::LOCKS_PER_REQUEST_MAX
        )));
    }
    for name in locks {
        limits::check_name("name of the lock", name)?;
    }
    if let Locks::Many(names) = &request.locks
        && !names.windows(2).all(|pair| pair[0] < pair[1])
    {
        return Err(Refusal::invalid("several locks must be named in order, each once"));
    }
    if locks.len() > 1 && (request.permits.is_some() || request.capacity.is_some()) {
        return Err(Refusal::invalid(
            "a request for several locks takes whole locks: leave out permits and capacity",
        ));
    }
    match &request.scope {
        Some(scope) => limits::check_name("name of the scope", scope)?,
        None if request.policy != Policy::Detect => {
            return Err(Refusal::invalid("a policy needs a scope: name the scope of the request"));
        }
        None => {}
    }
    let value_bytes = request.value.as_ref().map_or(0, |value| value.len());
    limits::check_length("candidate's value", value_bytes, limits::CANDIDATE_BYTES_MAX)?;
    if let Some(capacity) = request.capacity {
        limits::check_range("capacity", capacity.into(), 1, limits::CAPACITY_MAX.into())?;
    }
    if let Wait::ForMs(ms) = request.wait {
        limits::check_range("wait_ms", ms, 0, limits::WAIT_MS_MAX)?;
    }
    limits::check_range("lock_delay_ms", request.lock_delay_ms, 0, limits::LOCK_DELAY_MS_MAX)
}
