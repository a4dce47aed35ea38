//! What engines with sessions of their own have in common: etcd, ZooKeeper, Consul.
//!
//! An engine says how a session is opened, renewed and closed, how a request enters the queue, waits and leaves
//! ([`Backend`]). Everything that callers see is here, once: deadlines, jeopardy, request ids, dropped futures, guards
//! that are given back, closing.
//!
//! ```text
//! caller --ask--> attempt (a task of its own: a dropped caller cancels it where that leaves nothing behind)
//!                    |-- session (one for each time to live; one upkeep task renews it at a third)
//!                    |-- enter the queue, wait, look at the session again, grant
//!                 held: number -> what must leave the queue when the guard goes
//! ```

mod attempt;
mod backend;
mod entry;
mod line;
mod names;
mod pause;
mod pending;
mod release;
mod session;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::{Sequencer, Token};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};

pub(crate) use self::backend::{Backend, Entered, Failure, Opened, Queued, Ticket, Try};
pub(crate) use self::entry::{Shape, earlier_units, state_of};
pub(crate) use self::line::Lines;
pub(crate) use self::names::{escape, unescape, wall_clock};
pub(crate) use self::pause::{Pause, random_hex};
use self::pending::{RequestKey, Requests};
use self::release::Watcher;
use self::session::{Session, Sessions};
use crate::capabilities::{Capabilities, Finding};
use crate::engines::{Answer, Ask, Engine};
use crate::error::Error;
use crate::events::{EVENTS_KEPT, Event, Events};
use crate::grant::Grant;
use crate::options::Options;
use crate::view::{ForcedRelease, LockPage, LockState, TokenCheck};

/// An engine: a handle on what its tasks share.
pub(crate) struct Base<B: Backend> {
    core: Arc<Core<B>>,
}

/// What callers, attempts and upkeep share.
pub(crate) struct Core<B: Backend> {
    backend: Arc<B>,
    options: Options,
    /// Guards are dropped on any thread: what follows runs where the keeper was connected.
    runtime: Handle,
    sessions: Sessions<B>,
    held: Mutex<HashMap<u64, Held<B>>>,
    requests: Requests<B>,
    /// Requests of this keeper enter the engine's queue in the order in which they came.
    entering: Lines,
    numbers: AtomicU64,
    /// `None` once closed: readers then see the end.
    events: Mutex<Option<broadcast::Sender<Event>>>,
    closed: watch::Sender<bool>,
}

/// A grant that is in the engine's queue in our name.
struct Held<B: Backend> {
    grant: Arc<Grant>,
    session: Arc<Session<B>>,
    ticket: Arc<Ticket>,
    request: Option<RequestKey>,
    /// Only while it is held for long.
    watcher: Option<Watcher>,
}

/// A mutex whose poison does not matter: everything under it is changed in one step.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: Backend> Base<B> {
    pub(crate) fn new(backend: B, options: &Options) -> Base<B> {
        let core = Core {
            backend: Arc::new(backend),
            options: options.clone(),
            runtime: Handle::current(),
            sessions: Sessions::default(),
            held: Mutex::default(),
            requests: Requests::default(),
            entering: Lines::default(),
            numbers: AtomicU64::new(1),
            events: Mutex::new(Some(broadcast::Sender::new(EVENTS_KEPT))),
            closed: watch::Sender::new(false),
        };
        Base { core: Arc::new(core) }
    }
}

impl<B: Backend> Core<B> {
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn tell(&self, event: Event) {
        if let Some(events) = &*locked(&self.events) {
            // Nobody listens: nothing to tell.
            let _ = events.send(event);
        }
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Resolves when the keeper is closed.
    async fn until_closed(&self) {
        let mut closed = self.closed.subscribe();
        // The sender lives in here: it cannot be gone.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// An answer of the engine as an error of a call that only reads.
    fn told(&self, failure: Failure) -> Error {
        match failure {
            Failure::Refused(error) => error,
            Failure::Gone => Error::SessionLost,
            Failure::Unreachable(why) => {
                Error::unavailable(format!("{} does not answer ({why}): try again", self.backend.address()))
            }
        }
    }
}

impl<B: Backend> Drop for Base<B> {
    fn drop(&mut self) {
        if !self.core.is_closed() {
            let core = Arc::clone(&self.core);
            self.core.runtime.spawn(async move { core.shut_down().await });
        }
    }
}

impl<B: Backend> Engine for Base<B> {
    fn name(&self) -> &'static str {
        self.core.backend.capabilities().engine
    }

    fn capabilities(&self) -> &'static Capabilities {
        self.core.backend.capabilities()
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(self.core.call(self.core.backend.examine()))
    }

    fn acquire(&self, ask: Arc<Ask>) -> Answer<'_, Arc<Grant>> {
        Box::pin(self.core.acquire(ask))
    }

    fn release<'a>(&'a self, grant: &'a Grant) -> Answer<'a, ()> {
        Box::pin(self.core.release(grant))
    }

    fn give_back(&self, grant: &Grant) {
        self.core.give_back(grant.number);
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let core = Arc::clone(&self.core);
            let closing = self.core.runtime.spawn(async move { core.shut_down().await });
            // What is not done by then goes on in the background.
            let _ = tokio::time::timeout(self.core.options.request_timeout, closing).await;
            Ok(())
        })
    }

    fn events(&self) -> Events {
        match &*locked(&self.core.events) {
            Some(events) => Events::new(events.subscribe()),
            // Closed: a channel without a sender says so.
            None => Events::new(broadcast::channel(1).1),
        }
    }

    fn session_ids(&self) -> Answer<'_, Vec<String>> {
        Box::pin(
            async move { Ok(self.core.sessions.all().iter().map(|session| session.id.clone()).collect()) },
        )
    }

    fn who<'a>(&'a self, lock: &'a str) -> Answer<'a, LockState> {
        Box::pin(async move {
            let queue = self.core.call(self.core.backend.queue(lock)).await?;
            Ok(state_of(lock, &queue))
        })
    }

    fn locks<'a>(&'a self, prefix: &'a str, limit: u32, after: &'a str) -> Answer<'a, LockPage> {
        Box::pin(async move {
            let limit = if limit == 0 { 100 } else { limit.min(1_000) } as usize;
            let mut names = self.core.call(self.core.backend.names(prefix)).await?;
            names.retain(|name| name.as_str() > after && name.starts_with(prefix));
            names.sort_unstable();
            let mut page = LockPage::default();
            for name in names {
                if page.locks.len() == limit {
                    page.more = true;
                    break;
                }
                let queue = self.core.call(self.core.backend.queue(&name)).await?;
                if !queue.is_empty() {
                    page.locks.push(state_of(&name, &queue));
                }
            }
            Ok(page)
        })
    }

    fn check_token<'a>(&'a self, lock: &'a str, token: Token) -> Answer<'a, TokenCheck> {
        Box::pin(async move {
            let state = self.who(lock).await?;
            let valid = state.holders.iter().any(|holder| holder.token == token.0);
            Ok(TokenCheck { valid, last_token: state.last_token })
        })
    }

    fn check_sequencer<'a>(&'a self, sequencer: &'a str) -> Answer<'a, TokenCheck> {
        Box::pin(async move {
            let sequencer: Sequencer =
                sequencer.parse().map_err(|error| Error::invalid(format!("{error}")))?;
            self.check_token(&sequencer.lock, sequencer.token).await
        })
    }

    fn force_release<'a>(&'a self, lock: &'a str, reason: &'a str) -> Answer<'a, ForcedRelease> {
        Box::pin(async move {
            tracing::warn!(
                engine = self.name(),
                lock,
                reason,
                by = self.core.options.owner,
                "released by force"
            );
            let timeout = self.core.options.request_timeout;
            match tokio::time::timeout(timeout, self.core.backend.force_release(lock)).await {
                Ok(Ok(forced)) => Ok(forced),
                Ok(Err(Failure::Unreachable(why))) => Err(Error::Unknown(
                    format!("the answer was lost ({why}): look who holds it before you repeat it").into(),
                )),
                Ok(Err(failure)) => Err(self.core.told(failure)),
                Err(_) => Err(Error::Unknown(
                    format!("no answer within {timeout:?}: look who holds it before you repeat it").into(),
                )),
            }
        })
    }
}

impl<B: Backend> Core<B> {
    /// A question that only reads: repeated until the request timeout is over.
    async fn call<T>(&self, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let timeout = self.options.request_timeout;
        match tokio::time::timeout(timeout, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => Err(self.told(failure)),
            Err(_) => Err(self.told(Failure::unreachable(format!("no answer within {timeout:?}")))),
        }
    }
}
