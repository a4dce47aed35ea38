//! The engine operations, common to all recipes.

use std::future::Future;
use std::sync::Arc;

use lockkeeper_core::{Sequencer, Token};
use tokio::sync::watch;

use super::attempt::Attempt;
use super::requests::{BackgroundRelease, Lookup, Outcome, PendingAcquire, RequestKey};
use super::{Failure, Runtime, Server, validate};
use crate::capabilities::{Capabilities, Finding};
use crate::engines::{AcquireRequest, Answer, Engine};
use crate::error::Error;
use crate::events::Events;
use crate::grant::Grant;
use crate::limiter::Taken;
use crate::view::{ForcedRelease, LockPage, LockState, TokenCheck};

/// Kind of a recipe: each grant has its own lease, or grants share a session.
pub(crate) trait Kind: BackgroundRelease + Sized + 'static {
    type Server: Server;

    /// Whether an acquire can be dropped at any await. If so, it runs in its caller's future, which saves a task.
    const DROPPABLE: bool;

    fn runtime(&self) -> &Runtime;

    fn server(&self) -> &Self::Server;

    fn acquire(self: &Arc<Self>, attempt: &Attempt)
    -> impl Future<Output = Result<Arc<Grant>, Error>> + Send;

    fn release(self: &Arc<Self>, grant: &Grant) -> impl Future<Output = Result<(), Error>> + Send;

    fn session_ids(&self) -> Vec<String>;

    /// Releases everything that is held, and waits until that is done. Called once, after the keeper is marked as closed.
    fn shut_down(self: Arc<Self>) -> impl Future<Output = ()> + Send;
}

/// An engine on another vendor's server: a handle on the state that its tasks share.
pub(crate) struct ServerEngine<K: Kind> {
    kind: Arc<K>,
}

impl<K: Kind> ServerEngine<K> {
    pub(super) fn new(kind: Arc<K>) -> ServerEngine<K> {
        ServerEngine { kind }
    }

    async fn acquire_lock(&self, request: Arc<AcquireRequest>) -> Result<Arc<Grant>, Error> {
        let runtime = self.kind.runtime();
        if runtime.is_closed() {
            return Err(Error::Closed);
        }
        validate::check(&request, self.kind.server().capabilities())?;
        let key = request.request_id.clone().map(|id| (request.ttl, id));
        let owner = || Arc::clone(&self.kind) as Arc<dyn BackgroundRelease>;
        let (pending, outcome) = match &key {
            None if K::DROPPABLE => return run(&self.kind, &self.attempt(request, None, None)).await,
            None => PendingAcquire::new(owner()),
            Some(key) => match runtime.requests.look_up(owner, key, &request) {
                Lookup::New(pending, outcome) => (pending, outcome),
                Lookup::Pending(pending) => return pending.result().await,
                Lookup::Answered(answer) => return answer,
            },
        };
        let attempt = self.attempt(request, key, Some(outcome));
        runtime.background.handle().spawn(run_detached(Arc::clone(&self.kind), attempt));
        pending.result().await
    }

    fn attempt(
        &self,
        request: Arc<AcquireRequest>,
        key: Option<RequestKey>,
        outcome: Option<watch::Sender<Outcome>>,
    ) -> Attempt {
        Attempt::new(request, key, outcome, self.kind.runtime().options.request_timeout)
    }

    /// Runs a read with the request timeout.
    async fn read<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Error> {
        if self.kind.runtime().is_closed() {
            return Err(Error::Closed);
        }
        let timeout = self.kind.runtime().options.request_timeout;
        let result = match tokio::time::timeout(timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(Failure::no_answer_within(timeout)),
        };
        result.map_err(|failure| failure.into_error(&self.kind.server().address()))
    }

    async fn force(&self, lock: &str, reason: &str) -> Result<ForcedRelease, Error> {
        let (server, options) = (self.kind.server(), &self.kind.runtime().options);
        let engine = server.capabilities().engine;
        tracing::warn!(engine, lock, reason, by = options.owner, "lock released by force");
        let limit = options.request_timeout;
        let forced = tokio::time::timeout(limit, server.force_release(lock)).await;
        match forced.unwrap_or_else(|_| Err(Failure::no_answer_within(limit))) {
            Err(Failure::Unreachable(why)) => Err(Error::Unknown(
                format!("the answer was lost ({why}): check who holds the lock before you repeat it").into(),
            )),
            forced => forced.map_err(|failure| failure.into_error(&server.address())),
        }
    }
}

/// Runs an acquire until it has a result or the keeper is closed, which ends all pending acquires.
async fn run<K: Kind>(kind: &Arc<K>, attempt: &Attempt) -> Result<Arc<Grant>, Error> {
    let result = tokio::select! {
        biased;
        () = kind.runtime().until_closed() => Err(Error::Closed),
        result = kind.acquire(attempt) => result,
    };
    match result {
        // Closed meanwhile: the close may have missed this grant.
        Ok(grant) if kind.runtime().is_closed() => {
            Arc::clone(kind).release_in_background(grant.number);
            Err(Error::Closed)
        }
        result => result,
    }
}

/// Runs an acquire on its own task, for all callers that wait for it.
async fn run_detached<K: Kind>(kind: Arc<K>, mut attempt: Attempt) {
    let result = run(&kind, &attempt).await;
    if let (Err(_), Some(key)) = (&result, &attempt.key) {
        kind.runtime().requests.forget(key);
    }
    let Some(outcome) = attempt.outcome.take() else { return };
    if let Err(watch::error::SendError(Some(Ok(grant)))) = outcome.send(Some(result)) {
        kind.release_in_background(grant.number);
    }
}

impl<K: Kind> Drop for ServerEngine<K> {
    fn drop(&mut self) {
        if self.kind.runtime().close() {
            let kind = Arc::clone(&self.kind);
            self.kind.runtime().background.handle().spawn(kind.shut_down());
        }
    }
}

impl<K: Kind> Engine for ServerEngine<K> {
    fn name(&self) -> &'static str {
        self.capabilities().engine
    }

    fn capabilities(&self) -> &'static Capabilities {
        self.kind.server().capabilities()
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<'_, Arc<Grant>> {
        Box::pin(self.acquire_lock(request))
    }

    fn release<'a>(&'a self, grant: &'a Grant) -> Answer<'a, ()> {
        Box::pin(self.kind.release(grant))
    }

    fn release_in_background(&self, grant: &Grant) {
        Arc::clone(&self.kind).release_in_background(grant.number);
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let runtime = self.kind.runtime();
            if runtime.close() {
                let closing = runtime.background.handle().spawn(Arc::clone(&self.kind).shut_down());
                // After the timeout the shutdown continues in the background.
                let _ = tokio::time::timeout(runtime.options.request_timeout, closing).await;
            }
            Ok(())
        })
    }

    fn events(&self) -> Events {
        self.kind.runtime().events()
    }

    fn session_ids(&self) -> Answer<'_, Vec<String>> {
        Box::pin(std::future::ready(Ok(self.kind.session_ids())))
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(self.read(self.kind.server().examine()))
    }

    fn who<'a>(&'a self, lock: &'a str) -> Answer<'a, LockState> {
        Box::pin(self.read(self.kind.server().who(lock)))
    }

    fn locks<'a>(&'a self, prefix: &'a str, limit: u32, after: &'a str) -> Answer<'a, LockPage> {
        let limit = if limit == 0 { 100 } else { limit.min(1_000) as usize };
        Box::pin(self.read(self.kind.server().locks(prefix, limit, after)))
    }

    fn check_token<'a>(&'a self, lock: &'a str, token: Token) -> Answer<'a, TokenCheck> {
        Box::pin(self.read(self.kind.server().check_token(lock, token)))
    }

    fn check_sequencer<'a>(&'a self, sequencer: &'a str) -> Answer<'a, TokenCheck> {
        Box::pin(async move {
            let sequencer: Sequencer =
                sequencer.parse().map_err(|error| Error::invalid(format!("{error}")))?;
            self.check_token(&sequencer.lock, sequencer.token).await
        })
    }

    fn force_release<'a>(&'a self, lock: &'a str, reason: &'a str) -> Answer<'a, ForcedRelease> {
        Box::pin(self.force(lock, reason))
    }

    fn take_rate<'a>(
        &'a self,
        limiter: &'a str,
        permits: u64,
        rate_per_s: f64,
        burst: u64,
    ) -> Answer<'a, Taken> {
        Box::pin(self.read(self.kind.server().take_rate(limiter, permits, rate_per_s, burst)))
    }
}
