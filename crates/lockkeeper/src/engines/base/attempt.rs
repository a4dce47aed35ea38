//! One acquire, from the first question to the grant.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::Token;
use smol_str::SmolStr;
use tokio::sync::watch;

use super::pending::{Again, Outcome, Pending, RequestKey};
use super::session::{Kind, Session};
use super::{Backend, Core, Entered, Failure, Held, Pause, Shape, Ticket, Try, locked, random_hex};
use crate::clock::{Moment, sleep_towards};
use crate::engines::{Ask, Wait, ask};
use crate::error::Error;
use crate::grant::Grant;

/// What is asked for, checked.
struct Attempt<B: Backend> {
    core: Arc<Core<B>>,
    ask: Arc<Ask>,
    lock: SmolStr,
    shape: Shape,
    request: Option<RequestKey>,
    asked_at: Moment,
}

/// What a step of an attempt leads to.
enum Step {
    Granted(u64),
    /// The session or the entry is gone: from the start.
    Again,
}

impl<B: Backend> Core<B> {
    pub(super) async fn acquire(self: &Arc<Self>, ask: Arc<Ask>) -> Result<Arc<Grant>, Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        ask::check(&ask, self.backend.capabilities())?;
        // Several at once were refused.
        let lock = ask.locks.as_slice()[0].clone();
        let shape = Shape::of(&ask);
        let request = ask.request.clone().map(|id| (ask.ttl, id));
        let (pending, outcome) = match &request {
            None => Pending::new(Arc::clone(self)),
            Some(key) => match self.requests.ask(self, key, &lock) {
                Again::New(pending, outcome) => (pending, outcome),
                Again::Join(pending) => return pending.answer().await,
                Again::Answer(answer) => return answer,
            },
        };
        let core = Arc::clone(self);
        let attempt = Attempt { core, ask, lock, shape, request, asked_at: Moment::now() };
        self.runtime.spawn(attempt.run(outcome));
        pending.answer().await
    }
}

impl<B: Backend> Attempt<B> {
    async fn run(self, outcome: watch::Sender<Outcome>) {
        let result = tokio::select! {
            // Closing ends all sessions, and with them whatever is under way.
            () = self.core.until_closed() => Err(Error::Closed),
            result = self.work(&outcome) => result,
        };
        if let (Err(_), Some(key)) = (&result, &self.request) {
            self.core.requests.failed(key);
        }
        if let Err(watch::error::SendError(Some(Ok(grant)))) = outcome.send(Some(result)) {
            self.core.give_back(grant.number);
        }
    }

    async fn work(&self, caller: &watch::Sender<Outcome>) -> Result<Arc<Grant>, Error> {
        loop {
            let place = self.core.entering.join(&self.lock);
            let head = match self.ask.wait {
                // Whoever does not wait stands in no line.
                Wait::No => None,
                _ => Some(tokio::select! {
                    () = caller.closed() => return Err(Error::Cancelled),
                    () = self.until_wait_is_over() => return Err(Error::Timeout { lock: self.lock.clone() }),
                    head = place.head() => head,
                }),
            };
            let session = tokio::select! {
                () = caller.closed() => return Err(Error::Cancelled),
                session = self.session() => session?,
            };
            let ticket = Arc::new(Ticket {
                number: self.core.next_number(),
                id: random_hex()?,
                lock: self.lock.clone(),
                shape: self.shape,
                value: self.ask.value.clone(),
                in_doubt: AtomicBool::new(false),
                place: OnceLock::new(),
                path: OnceLock::new(),
            });
            let entered = self.enter(&session, &ticket, caller).await;
            drop(head);
            let entered = match entered {
                Ok(Some(entered)) => self.granted_in_turn(&session, &ticket, caller, entered).await,
                Ok(None) => Ok(Step::Again),
                Err(error) => Err(error),
            };
            let step = match entered {
                Ok(step) => step,
                Err(error) => {
                    self.leave_now(&session, &ticket, &error).await;
                    return Err(error);
                }
            };
            if let Step::Granted(token) = step {
                return Ok(self.granted(session, ticket, token));
            }
        }
    }

    /// A session, opened if need be.
    async fn session(&self) -> Result<Arc<Session<B>>, Error> {
        let kind = Kind { ttl: self.ask.ttl, lock_delay: self.ask.lock_delay };
        let mut pause = Pause::default();
        loop {
            match self.core.session(kind).await {
                Ok(session) => return Ok(session),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Gone) => {}
                Err(Failure::Unreachable(why)) if self.is_over() => return Err(self.unavailable(&why)),
                Err(Failure::Unreachable(_)) => {}
            }
            pause.next().await;
        }
    }

    /// Enters the queue; `None` if the session is gone.
    async fn enter(
        &self,
        session: &Session<B>,
        ticket: &Ticket,
        caller: &watch::Sender<Outcome>,
    ) -> Result<Option<Entered>, Error> {
        let backend = &self.core.backend;
        let mode = if self.ask.wait == Wait::No { Try::Once } else { Try::Queue };
        let limit = self.core.options.request_timeout;
        let mut pause = Pause::default();
        loop {
            // Not dropped when the caller goes: what is half entered could not be told from what never was.
            let why = match tokio::time::timeout(limit, backend.enter(&session.inner, ticket, mode)).await {
                Ok(Ok(entered)) => return Ok(Some(entered)),
                Ok(Err(Failure::Refused(error))) => return Err(error),
                Ok(Err(Failure::Gone)) => {
                    self.core.session_lost(session);
                    return Ok(None);
                }
                Ok(Err(Failure::Unreachable(why))) => why,
                Err(_) => format!("no answer within {limit:?}").into(),
            };
            ticket.in_doubt.store(true, Ordering::Relaxed);
            if self.is_over() {
                return Err(self.unavailable(&why));
            }
            tokio::select! {
                () = caller.closed() => return Err(Error::Cancelled),
                () = session.lost() => return Ok(None),
                () = pause.next() => {}
            }
        }
    }

    /// From the entry to the grant: at once, or after a wait.
    async fn granted_in_turn(
        &self,
        session: &Session<B>,
        ticket: &Ticket,
        caller: &watch::Sender<Outcome>,
        entered: Entered,
    ) -> Result<Step, Error> {
        let token = match entered {
            Entered::Busy => return Err(Error::Contended { lock: self.lock.clone() }),
            Entered::Holds(token)
                if session.deadline.at().is_ok_and(|at| Moment::now() < at)
                    && !session.deadline.is_suspended() =>
            {
                return Ok(Step::Granted(token));
            }
            Entered::Holds(token) => token,
            Entered::Waits => match self.wait(session, ticket, caller).await? {
                Step::Granted(token) => token,
                Step::Again => return Ok(Step::Again),
            },
        };
        // After a wait the lease may be long dead (etcd-io/etcd#11456): the session has to answer once more.
        tokio::select! {
            () = caller.closed() => Err(Error::Cancelled),
            () = self.until_over() => Err(Error::unavailable(
                "the lock was granted, but the session could not be renewed in time: try again",
            )),
            confirmed = session.confirmed() => {
                Ok(if confirmed { Step::Granted(token) } else { Step::Again })
            }
        }
    }

    async fn wait(
        &self,
        session: &Session<B>,
        ticket: &Ticket,
        caller: &watch::Sender<Outcome>,
    ) -> Result<Step, Error> {
        let mut pause = Pause::default();
        let mut trouble: Option<SmolStr> = None;
        loop {
            let failure = tokio::select! {
                biased;
                () = caller.closed() => return Err(Error::Cancelled),
                () = session.lost() => return Ok(Step::Again),
                () = self.until_wait_is_over() => return Err(match trouble {
                    Some(why) => self.unavailable(&why),
                    None => Error::Timeout { lock: self.lock.clone() },
                }),
                turn = self.core.backend.turn(&session.inner, ticket) => match turn {
                    Ok(Some(token)) => return Ok(Step::Granted(token)),
                    Ok(None) => return Ok(Step::Again),
                    Err(failure) => failure,
                },
            };
            match failure {
                Failure::Refused(error) => return Err(error),
                Failure::Gone => {
                    self.core.session_lost(session);
                    return Ok(Step::Again);
                }
                Failure::Unreachable(why) => trouble = Some(why),
            }
            tokio::select! {
                () = caller.closed() => return Err(Error::Cancelled),
                () = pause.next() => {}
            }
        }
    }

    /// Nothing of it stays behind. The caller hears of the end of the wait when it has left the queue, or soon.
    async fn leave_now(&self, session: &Arc<Session<B>>, ticket: &Arc<Ticket>, why: &Error) {
        if matches!(why, Error::Contended { .. }) {
            return;
        }
        let (core, session, ticket) = (Arc::clone(&self.core), Arc::clone(session), Arc::clone(ticket));
        let leaving = tokio::spawn(async move { core.leave(&session, &ticket).await });
        if !matches!(why, Error::Unavailable(_)) {
            let _ = tokio::time::timeout(self.core.options.request_timeout, leaving).await;
        }
    }

    fn granted(&self, session: Arc<Session<B>>, ticket: Arc<Ticket>, token: u64) -> Arc<Grant> {
        let token = Token(token);
        let grant = Arc::new(Grant {
            number: ticket.number,
            locks: self.ask.locks.clone(),
            mode: self.ask.mode,
            token: Some(token),
            sequencer: OnceLock::new(),
            session: None,
            deadline: Arc::clone(&session.deadline),
            grace: self.ask.grace,
            works_in_jeopardy: self.ask.works_in_jeopardy,
            lost: AtomicU8::new(0),
        });
        let request = self.request.clone();
        let held = Held { grant: Arc::clone(&grant), session, ticket, request, watcher: None };
        locked(&self.core.held).insert(grant.number, held);
        if let Some(key) = &self.request {
            self.core.requests.granted(key, &grant);
        }
        grant
    }

    /// How long an acquire may take when the engine cannot be reached.
    fn limit(&self) -> Option<Duration> {
        let timeout = self.core.options.request_timeout;
        match self.ask.wait {
            Wait::No => Some(timeout),
            Wait::For(limit) => Some(limit.max(timeout)),
            Wait::Forever => None,
        }
    }

    fn is_over(&self) -> bool {
        self.limit().is_some_and(|limit| Moment::now() >= self.asked_at.plus(limit))
    }

    async fn until_over(&self) {
        until(self.limit().map_or(Moment::NEVER, |limit| self.asked_at.plus(limit))).await;
    }

    async fn until_wait_is_over(&self) {
        until(match self.ask.wait {
            Wait::No => self.asked_at,
            Wait::For(limit) => self.asked_at.plus(limit),
            Wait::Forever => Moment::NEVER,
        })
        .await;
    }

    fn unavailable(&self, why: &str) -> Error {
        Error::unavailable(format!(
            "{} does not answer ({why}): nothing is held; try again",
            self.core.backend.address()
        ))
    }
}

async fn until(moment: Moment) {
    while Moment::now() < moment {
        sleep_towards(moment).await;
    }
}
