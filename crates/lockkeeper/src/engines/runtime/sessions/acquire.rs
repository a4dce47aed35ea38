//! Acquire, for engines with sessions: from the request to the grant.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use lockkeeper_core::Token;
use smol_str::SmolStr;

use super::pool::{Session, SessionKind};
use super::{Entered, Held, Recipe, Sessions, Ticket, Try};
use crate::backoff::Backoff;
use crate::engines::Wait;
use crate::engines::runtime::attempt::{Attempt, Obtained, confirmed};
use crate::engines::runtime::{Claim, Failure, locked, random_hex};
use crate::error::Error;
use crate::grant::Grant;

/// An acquire in progress.
struct Acquire<'a, R: Recipe> {
    sessions: &'a Arc<Sessions<R>>,
    attempt: &'a Attempt,
    lock: SmolStr,
}

/// Result of a step.
enum Step {
    Granted(u64),
    /// The session or the entry is gone: start over.
    Restart,
}

impl<R: Recipe> Sessions<R> {
    pub(super) async fn acquire_entry(self: &Arc<Self>, attempt: &Attempt) -> Result<Arc<Grant>, Error> {
        // The validation refuses several locks.
        let lock = attempt.request.locks.as_slice()[0].clone();
        Acquire { sessions: self, attempt, lock }.run().await
    }
}

impl<R: Recipe> Acquire<'_, R> {
    async fn run(&self) -> Result<Arc<Grant>, Error> {
        let attempt = self.attempt;
        loop {
            let place = self.sessions.runtime.queues.join(&self.lock);
            let head = match attempt.request.wait {
                // A request that does not wait skips the local queue.
                Wait::No => None,
                _ => Some(tokio::select! {
                    () = attempt.abandoned() => return Err(Error::Cancelled),
                    () = attempt.until_wait_ends() => return Err(attempt.not_granted()),
                    head = place.head() => head,
                }),
            };
            let session = tokio::select! {
                () = attempt.abandoned() => return Err(Error::Cancelled),
                session = self.session() => session?,
            };
            let ticket = Arc::new(self.ticket()?);
            let entered = self.enter(&session, &ticket).await;
            drop(head);
            let entered = match entered {
                Ok(Some(entered)) => self.granted_in_turn(&session, &ticket, entered).await,
                Ok(None) => Ok(Step::Restart),
                Err(error) => Err(error),
            };
            match entered {
                Ok(Step::Granted(token)) => return Ok(self.granted(session, ticket, token)),
                Ok(Step::Restart) => {}
                Err(error) => {
                    self.leave_now(&session, &ticket, &error).await;
                    return Err(error);
                }
            }
        }
    }

    fn ticket(&self) -> Result<Ticket, Error> {
        Ok(Ticket {
            number: self.sessions.runtime.next_number(),
            id: random_hex::<8>()?,
            lock: self.lock.clone(),
            claim: Claim::of(&self.attempt.request),
            value: self.attempt.request.value.clone(),
            in_doubt: AtomicBool::new(false),
            place: OnceLock::new(),
            path: OnceLock::new(),
        })
    }

    /// Returns the session of the request; opens it if necessary.
    async fn session(&self) -> Result<Arc<Session<R>>, Error> {
        let request = &self.attempt.request;
        let kind = SessionKind { ttl: request.ttl, lock_delay: request.lock_delay };
        let mut backoff = Backoff::default();
        loop {
            match self.sessions.session(kind).await {
                Ok(session) => return Ok(session),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Gone) => {}
                Err(Failure::Unreachable(why)) if self.attempt.is_timed_out() => {
                    return Err(self.unavailable(&why));
                }
                Err(Failure::Unreachable(_)) => {}
            }
            backoff.wait().await;
        }
    }

    /// Enters the queue; `None` if the session is gone.
    async fn enter(&self, session: &Session<R>, ticket: &Ticket) -> Result<Option<Entered>, Error> {
        let recipe = &self.sessions.recipe;
        let mode = if self.attempt.request.wait == Wait::No { Try::Once } else { Try::Queue };
        let limit = self.sessions.runtime.options.request_timeout;
        let mut backoff = Backoff::default();
        loop {
            // Not dropped with the caller: a partially entered entry could not be distinguished from none.
            let entered = tokio::time::timeout(limit, recipe.enter(&session.inner, ticket, mode)).await;
            let why = match entered.unwrap_or_else(|_| Err(Failure::no_answer_within(limit))) {
                Ok(entered) => return Ok(Some(entered)),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Gone) => {
                    self.sessions.session_lost(session);
                    return Ok(None);
                }
                Err(Failure::Unreachable(why)) => why,
            };
            ticket.in_doubt.store(true, Ordering::Relaxed);
            if self.attempt.is_timed_out() {
                return Err(self.unavailable(&why));
            }
            tokio::select! {
                () = self.attempt.abandoned() => return Err(Error::Cancelled),
                () = session.lost() => return Ok(None),
                () = backoff.wait() => {}
            }
        }
    }

    /// Turns an entry into a grant, at once or after a wait.
    async fn granted_in_turn(
        &self,
        session: &Session<R>,
        ticket: &Ticket,
        entered: Entered,
    ) -> Result<Step, Error> {
        let (token, obtained) = match entered {
            Entered::Busy => return Err(self.attempt.not_granted()),
            Entered::Holds(token) => (token, Obtained::AtOnce),
            Entered::Waits => match self.wait(session, ticket).await? {
                Step::Granted(token) => (token, Obtained::AfterWait),
                Step::Restart => return Ok(Step::Restart),
            },
        };
        tokio::select! {
            biased;
            confirmed = confirmed(obtained, &session.deadline, session.confirmed()) => {
                Ok(if confirmed { Step::Granted(token) } else { Step::Restart })
            }
            () = self.attempt.abandoned() => Err(Error::Cancelled),
            () = self.attempt.until_timed_out() => Err(Error::unavailable(
                "the lock was granted, but the session could not be renewed in time: try again",
            )),
        }
    }

    async fn wait(&self, session: &Session<R>, ticket: &Ticket) -> Result<Step, Error> {
        let mut backoff = Backoff::default();
        let mut last_failure = None;
        loop {
            let failure = tokio::select! {
                biased;
                () = self.attempt.abandoned() => return Err(Error::Cancelled),
                () = session.lost() => return Ok(Step::Restart),
                () = self.attempt.until_wait_ends() => return Err(match last_failure {
                    Some(why) => self.unavailable(&why),
                    None => self.attempt.not_granted(),
                }),
                turn = self.sessions.recipe.wait(&session.inner, ticket) => match turn {
                    Ok(Some(token)) => return Ok(Step::Granted(token)),
                    Ok(None) => return Ok(Step::Restart),
                    Err(failure) => failure,
                },
            };
            match failure {
                Failure::Refused(error) => return Err(error),
                Failure::Gone => {
                    self.sessions.session_lost(session);
                    return Ok(Step::Restart);
                }
                Failure::Unreachable(why) => last_failure = Some(why),
            }
            tokio::select! {
                () = self.attempt.abandoned() => return Err(Error::Cancelled),
                () = backoff.wait() => {}
            }
        }
    }

    /// Leaves the queue after a failure. Waits until the entry is gone, at most for the request timeout; not at all if the
    /// server is unreachable.
    async fn leave_now(&self, session: &Arc<Session<R>>, ticket: &Arc<Ticket>, why: &Error) {
        if matches!(why, Error::Contended { .. }) {
            return;
        }
        let (sessions, session, ticket) =
            (Arc::clone(self.sessions), Arc::clone(session), Arc::clone(ticket));
        let leaving = tokio::spawn(async move { sessions.leave(&session, &ticket).await });
        if !matches!(why, Error::Unavailable(_)) {
            let _ = tokio::time::timeout(self.sessions.runtime.options.request_timeout, leaving).await;
        }
    }

    fn granted(&self, session: Arc<Session<R>>, ticket: Arc<Ticket>, token: u64) -> Arc<Grant> {
        let request = &self.attempt.request;
        let grant = Arc::new(Grant {
            number: ticket.number,
            locks: request.locks.clone(),
            mode: request.mode,
            token: Some(Token(token)),
            sequencer: OnceLock::new(),
            session: None,
            deadline: Arc::clone(&session.deadline),
            grace: request.grace,
            works_in_jeopardy: request.works_in_jeopardy,
            lost: AtomicU8::new(0),
        });
        let key = self.attempt.key.clone();
        let held = Held { grant: Arc::clone(&grant), session, ticket, key, watcher: None };
        locked(&self.sessions.held).insert(grant.number, held);
        if let Some(key) = &self.attempt.key {
            self.sessions.runtime.requests.granted(key, &grant);
        }
        grant
    }

    fn unavailable(&self, why: impl std::fmt::Display) -> Error {
        let address = self.sessions.recipe.address();
        Error::unavailable(format!("{address} does not answer ({why}): nothing is held; try again"))
    }
}
