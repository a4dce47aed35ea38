//! Engines in which each grant has a lease of its own on a server made by others: Redis, Redlock, PostgreSQL. What they
//! have in common is here, once: renewals, deadlines, waits, retries, and that nothing is left behind.
//!
//! ```text
//! acquire   the caller's future: asks the store, waits for its turn, undoes what it asked when it is dropped
//! holdings  what is held, by number
//! upkeep    one task for each keeper: renews at a third of the time to live
//! store     the engine: how to take, renew and give on its server
//! ```

mod acquire;
mod holdings;
mod turns;
mod upkeep;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::Token;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;

use self::holdings::Holdings;
use self::turns::Turns;
use super::{Answer, Ask, Engine};
use crate::backoff;
use crate::capabilities::{Capabilities, Finding};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{Error, Loss};
use crate::events::{EVENTS_KEPT, Event, Events};
use crate::grant::Grant;
use crate::options::Options;
use crate::view::{ForcedRelease, LockPage, LockState, TokenCheck};

/// How an engine takes, renews and gives on its server. Each call ends within the request timeout, but for the wait that
/// it was given. `Unavailable` and `Unknown` are passing: they are tried again while there is time.
pub(crate) trait Store: Send + Sync + 'static {
    /// What it needs to know to renew and give.
    type Lease: Clone + Send + Sync + 'static;

    fn capabilities(&self) -> &'static Capabilities;

    /// Where the server is, for texts.
    fn address(&self) -> String;

    /// Takes the locks in the name of `owner`, or says that they are busy. Taking twice as the same owner is taking once.
    /// An engine whose server has a queue may wait there for up to `wait`.
    fn take(
        &self,
        ask: &Ask,
        owner: &OwnerId,
        wait: Duration,
    ) -> impl Future<Output = Result<Taken<Self::Lease>, Error>> + Send;

    /// Prolongs the lease; false if it is not ours any more.
    fn renew(&self, lease: &Self::Lease, ttl: Duration) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Gives it back; false if it was not ours any more.
    fn give(&self, lease: &Self::Lease) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Undoes a take whose answer nobody waits for.
    fn undo(&self, ask: &Ask, owner: &OwnerId) -> impl Future<Output = Result<(), Error>> + Send;

    /// News of releases from now on, if the server has any.
    fn listen(&self, _ask: &Ask) -> impl Future<Output = News> + Send {
        std::future::ready(News::none())
    }

    fn examine(&self) -> impl Future<Output = Result<Vec<Finding>, Error>> + Send;

    fn who(&self, _lock: &str) -> impl Future<Output = Result<LockState, Error>> + Send {
        std::future::ready(Err(self.cannot("say who holds a lock")))
    }

    fn locks(
        &self,
        _prefix: &str,
        _limit: u32,
        _after: &str,
    ) -> impl Future<Output = Result<LockPage, Error>> + Send {
        std::future::ready(Err(self.cannot("list locks")))
    }

    fn check_token(
        &self,
        _lock: &str,
        _token: Token,
    ) -> impl Future<Output = Result<TokenCheck, Error>> + Send {
        std::future::ready(Err(self.cannot("check a token")))
    }

    fn force_release(
        &self,
        _lock: &str,
        _reason: &str,
    ) -> impl Future<Output = Result<ForcedRelease, Error>> + Send {
        std::future::ready(Err(self.cannot("release a lock by force")))
    }

    fn take_rate(
        &self,
        _limiter: &str,
        _permits: u64,
        _rate_per_s: f64,
        _burst: u64,
    ) -> impl Future<Output = Result<crate::limiter::Taken, Error>> + Send {
        std::future::ready(Err(self.cannot("limit a rate")))
    }

    /// The keeper is closed, and nothing is held any more.
    fn shut(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    fn cannot(&self, what: &str) -> Error {
        Error::unsupported(format!("the engine {} cannot {what}", self.capabilities().engine))
    }
}

/// The answer to a take.
pub(crate) enum Taken<L> {
    Granted {
        lease: L,
        token: Option<Token>,
        deadline: Arc<Deadline>,
    },
    /// Somebody else holds it, for this long at most if the server knows.
    Busy {
        free_in: Option<Duration>,
    },
}

/// 20 random bytes: nobody else has the same, and nobody can guess it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnerId(pub(crate) String);

impl OwnerId {
    pub(crate) fn random() -> Result<OwnerId, Error> {
        let mut bytes = [0u8; 20];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::Fatal(format!("the system gives no random numbers: {error}").into()))?;
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(40);
        for byte in bytes {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        Ok(OwnerId(text))
    }
}

/// News that a lock may be free. Without any, only timers tell.
pub(crate) struct News(Option<watch::Receiver<()>>);

impl News {
    pub(crate) fn none() -> News {
        News(None)
    }

    pub(crate) fn from(receiver: watch::Receiver<()>) -> News {
        News(Some(receiver))
    }

    async fn next(&mut self) {
        if let Some(receiver) = &mut self.0
            && receiver.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

/// An engine whose grants have leases of their own.
pub(crate) struct LeaseEngine<S: Store> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Store> {
    store: S,
    options: Options,
    holdings: Holdings<S::Lease>,
    turns: Turns,
    numbers: AtomicU64,
    /// Told when something is due before the upkeep looks again, and at the end.
    rescheduled: Arc<Notify>,
    /// When the upkeep looks again, in nanoseconds on our clock.
    looks_at: AtomicU64,
    events: broadcast::Sender<Event>,
    connected: AtomicBool,
    closed: watch::Sender<bool>,
    /// Releases and undos that nobody waits for. Bounded by what exists: one for each guard or waiting future.
    background: Mutex<JoinSet<()>>,
}

impl<S: Store> LeaseEngine<S> {
    /// The store has been reached already.
    pub(crate) fn start(store: S, options: &Options) -> LeaseEngine<S> {
        let rescheduled = Arc::new(Notify::new());
        let inner = Arc::new(Inner {
            store,
            options: options.clone(),
            holdings: Holdings::default(),
            turns: Turns::default(),
            numbers: AtomicU64::new(1),
            rescheduled: Arc::clone(&rescheduled),
            looks_at: AtomicU64::new(0),
            events: broadcast::Sender::new(EVENTS_KEPT),
            connected: AtomicBool::new(true),
            closed: watch::Sender::new(false),
            background: Mutex::new(JoinSet::new()),
        });
        tokio::spawn(upkeep::run(Arc::downgrade(&inner), rescheduled));
        LeaseEngine { inner }
    }
}

impl<S: Store> Drop for LeaseEngine<S> {
    fn drop(&mut self) {
        self.inner.rescheduled.notify_one();
    }
}

impl<S: Store> Inner<S> {
    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Tells whether the server is reached, by how the last call went.
    fn heard<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Err(error) if is_passing(error) => {
                if self.connected.swap(false, Ordering::AcqRel) {
                    let why = smol_str::format_smolstr!("{error}");
                    let _ = self.events.send(Event::Disconnected { why });
                }
            }
            _ => {
                if !self.connected.load(Ordering::Acquire) && !self.connected.swap(true, Ordering::AcqRel) {
                    let _ = self.events.send(Event::Connected { address: self.store.address().into() });
                }
            }
        }
        result
    }

    /// Does something that nobody waits for.
    fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime there is nobody to do it: the lease runs out by itself.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut background = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        while background.try_join_next().is_some() {}
        background.spawn_on(work, &runtime);
    }

    /// Gives a lease back in the background, again and again until its time is over.
    fn give_in_background(self: &Arc<Self>, lease: S::Lease, ttl: Duration) {
        let inner = Arc::clone(self);
        self.in_background(async move {
            persist(ttl, || inner.store.give(&lease)).await;
        });
    }

    async fn release(self: &Arc<Self>, grant: &Grant) -> Result<(), Error> {
        let not_held = || match grant.state() {
            Err(Loss::SessionExpired) => Error::SessionLost,
            Err(Loss::Closed) => Error::Closed,
            _ => Error::NotHeld { lock: grant.name().clone() },
        };
        let Some(lease) = self.holdings.begin_release(grant.number) else { return Err(not_held()) };
        let limit = self.options.request_timeout;
        let given = tokio::time::timeout(limit, persist_for(limit, || self.store.give(&lease))).await;
        match given.map(|given| self.heard(given)) {
            Ok(Ok(true)) => {
                self.holdings.remove(grant.number);
                Ok(())
            }
            Ok(Ok(false)) => {
                self.holdings.remove(grant.number);
                let _ = grant.lose(Loss::TakenAway);
                Err(not_held())
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => format!("no answer within {limit:?}"),
                };
                self.give_back(grant);
                Err(Error::Unknown(smol_str::format_smolstr!(
                    "\"{}\" may not be released ({why}): it is tried again in the background, and the lock is free when \
                     its time to live is over at the latest",
                    grant.name()
                )))
            }
        }
    }

    fn give_back(self: &Arc<Self>, grant: &Grant) {
        if let Some(held) = self.holdings.remove(grant.number) {
            self.give_in_background(held.lease, held.ttl);
        }
    }

    async fn close(self: &Arc<Self>) {
        if self.closed.send_replace(true) {
            return;
        }
        let held = self.holdings.take_all();
        for held in &held {
            let _ = held.grant.lose(Loss::Closed);
        }
        for held in held {
            self.give_in_background(held.lease, held.ttl);
        }
        self.rescheduled.notify_one();
        let mut background =
            std::mem::take(&mut *self.background.lock().unwrap_or_else(PoisonError::into_inner));
        let all = async { while background.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.options.request_timeout, all).await;
        self.store.shut().await;
    }
}

/// It did not happen or nobody knows, and it can be asked again.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Unavailable(_) | Error::Unknown(_))
}

/// Repeats it until it is answered or the time is over.
async fn persist_for<T, F>(limit: Duration, mut work: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let until = Moment::now().plus(limit);
    let mut attempt = 0;
    loop {
        match work().await {
            Err(error) if is_passing(&error) => {
                attempt += 1;
                let pause = backoff::pause(attempt);
                if Moment::now().plus(pause) >= until {
                    return Err(error);
                }
                tokio::time::sleep(pause).await;
            }
            result => return result,
        }
    }
}

/// The same when nobody waits for the answer.
async fn persist<T, F>(limit: Duration, work: impl FnMut() -> F)
where
    F: Future<Output = Result<T, Error>>,
{
    if let Err(error) = persist_for(limit, work).await {
        tracing::debug!(%error, "a lock could not be given back: it is free when its time to live is over");
    }
}

impl<S: Store> Engine for LeaseEngine<S> {
    fn name(&self) -> &'static str {
        self.inner.store.capabilities().engine
    }

    fn capabilities(&self) -> &'static Capabilities {
        self.inner.store.capabilities()
    }

    fn acquire(&self, ask: Arc<Ask>) -> Answer<'_, Arc<Grant>> {
        Box::pin(self.inner.acquire(ask))
    }

    fn release<'a>(&'a self, grant: &'a Grant) -> Answer<'a, ()> {
        Box::pin(self.inner.release(grant))
    }

    fn give_back(&self, grant: &Grant) {
        self.inner.give_back(grant);
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.inner.close().await;
            Ok(())
        })
    }

    fn events(&self) -> Events {
        match self.inner.is_closed() {
            // A channel without a sender says that there is nothing more to come.
            true => Events::new(broadcast::channel(1).1),
            false => Events::new(self.inner.events.subscribe()),
        }
    }

    fn session_ids(&self) -> Answer<'_, Vec<String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(self.inner.store.examine())
    }

    fn who<'a>(&'a self, lock: &'a str) -> Answer<'a, LockState> {
        Box::pin(self.inner.store.who(lock))
    }

    fn locks<'a>(&'a self, prefix: &'a str, limit: u32, after: &'a str) -> Answer<'a, LockPage> {
        Box::pin(self.inner.store.locks(prefix, limit, after))
    }

    fn check_token<'a>(&'a self, lock: &'a str, token: Token) -> Answer<'a, TokenCheck> {
        Box::pin(self.inner.store.check_token(lock, token))
    }

    fn check_sequencer<'a>(&'a self, sequencer: &'a str) -> Answer<'a, TokenCheck> {
        Box::pin(async move {
            let sequencer: lockkeeper_core::Sequencer =
                sequencer.parse().map_err(|error| Error::invalid(format!("{error}")))?;
            self.inner.store.check_token(&sequencer.lock, sequencer.token).await
        })
    }

    fn force_release<'a>(&'a self, lock: &'a str, reason: &'a str) -> Answer<'a, ForcedRelease> {
        Box::pin(self.inner.store.force_release(lock, reason))
    }

    fn take_rate<'a>(
        &'a self,
        limiter: &'a str,
        permits: u64,
        rate_per_s: f64,
        burst: u64,
    ) -> Answer<'a, crate::limiter::Taken> {
        Box::pin(self.inner.store.take_rate(limiter, permits, rate_per_s, burst))
    }
}
