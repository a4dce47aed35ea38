//! The keeper: a connection to an engine, shared by all locks of a program.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_core::{Locks, Token};
use smol_str::{SmolStr, format_smolstr};

use crate::capabilities::{Capabilities, Finding, TokenKind};
use crate::election::Election;
use crate::engines::{self, AcquireRequest, Engine};
use crate::error::Error;
use crate::events::Events;
use crate::fencing::{Fenced, Fencing, Unfenced};
use crate::guard::Guard;
use crate::limiter::Limiter;
use crate::lock::Lock;
use crate::lock_all::LockAll;
use crate::once::Once;
use crate::options::{KeeperBuilder, Options};
use crate::scope::Scope;
use crate::trace;
use crate::value::ValueHandle;
use crate::view::{ForcedRelease, LockPage, LockState, Status, TokenCheck};

/// Client of a lock engine: creates locks, elections, limiters and values.
///
/// Cheap to clone. All clones share one connection, and one session for each time to live. A keeper reconnects by itself.
///
/// When the last clone and the last guard are dropped, the keeper closes its sessions in the background. Call
/// [`close`](Keeper::close) before the program exits: a lock whose release was not sent stays held until its time to live
/// expires.
pub struct Keeper<F: Fencing = Fenced> {
    pub(crate) shared: Arc<Shared>,
    fencing: PhantomData<fn() -> F>,
}

/// State shared by all clones and guards.
pub(crate) struct Shared {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) options: Options,
}

impl Keeper {
    /// Connects to an engine that can fence.
    ///
    /// [`EngineInfo`](crate::EngineInfo) lists the URLs. Redlock cannot fence: use
    /// [`connect_unfenced`](Keeper::connect_unfenced). The tokens of Redis are volatile: see
    /// [`KeeperBuilder::accept_volatile_tokens`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server answers within the connect timeout, [`Error::Unsupported`] if the engine cannot
    /// fence or is not built in, [`Error::Invalid`] if the URL is malformed.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Keeper<Fenced>, Error> {
        KeeperBuilder::default().connect(url).await
    }

    /// Creates a builder that sets the owner, the default time to live, timeouts and credentials.
    pub fn builder() -> KeeperBuilder {
        KeeperBuilder::default()
    }
}

impl Keeper<Unfenced> {
    /// Connects to any engine, including one that cannot fence. Its guards have no token; see [`Unfenced`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves nothing behind.
    pub async fn connect_unfenced(url: &str) -> Result<Keeper<Unfenced>, Error> {
        KeeperBuilder::default().connect_unfenced(url).await
    }
}

impl Keeper {
    /// Creates a handle to an election. Its epoch is a fencing token, so it needs a fenced keeper.
    pub fn election(&self, name: impl Into<SmolStr>) -> Election {
        Election::new(self.clone(), name.into())
    }

    /// Creates a handle to a step that runs once across all clients. Needs an engine that stores values.
    pub fn once(&self, name: impl Into<SmolStr>) -> Once {
        Once::new(self.clone(), name.into())
    }
}

impl<F: Fencing> Keeper<F> {
    pub(crate) fn new(engine: Box<dyn Engine>, options: Options) -> Keeper<F> {
        Keeper { shared: Arc::new(Shared { engine, options }), fencing: PhantomData }
    }

    /// Converts to a keeper whose guards have tokens, if the engine can fence. Call it once, when the program starts.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the engine has no tokens, or has volatile tokens that were not accepted with
    /// [`KeeperBuilder::accept_volatile_tokens`].
    pub fn fenced(&self) -> Result<Keeper<Fenced>, Error> {
        let engine = &self.shared.engine;
        match engine.capabilities().token {
            TokenKind::Durable => {}
            TokenKind::Volatile if self.shared.options.accepts_volatile_tokens => {}
            TokenKind::Volatile => {
                return Err(Error::unsupported(format!(
                    "the tokens of {} are volatile: if its server loses its data, it grants low numbers again, and gates \
                     can accept a stale holder. Use `Keeper::connect_unfenced` where doing the work twice is harmless, \
                     accept the risk with `accept_volatile_tokens()` (on the command line --accept-volatile-tokens), or \
                     choose an engine with durable tokens",
                    engine.name()
                )));
            }
            TokenKind::None => {
                return Err(Error::unsupported(format!(
                    "{} cannot fence: its locks have no fencing token. Use `Keeper::connect_unfenced` where doing the work \
                     twice is harmless, or choose an engine that can fence",
                    engine.name()
                )));
            }
        }
        Ok(Keeper { shared: Arc::clone(&self.shared), fencing: PhantomData })
    }

    /// Creates a handle to a lock. It does nothing until it is acquired.
    pub fn lock(&self, name: impl Into<SmolStr>) -> Lock<F> {
        Lock::new(self.clone(), name.into())
    }

    /// Creates a handle to several locks that are acquired together, all or nothing, with one token.
    ///
    /// The order of the names does not matter: acquiring them together cannot deadlock.
    pub fn lock_all<N: Into<SmolStr>>(&self, names: impl IntoIterator<Item = N>) -> LockAll<F> {
        LockAll::new(self.clone(), Locks::many(names.into_iter().map(Into::into)))
    }

    /// Creates a handle to a small value that the engine stores beside the locks.
    pub fn value(&self, key: impl Into<String>) -> ValueHandle<F> {
        ValueHandle::new(self.clone(), key.into())
    }

    /// Acquires the locks of a request. Cancel-safe.
    pub(crate) async fn acquire(&self, request: Arc<AcquireRequest>) -> Result<Guard<F>, Error> {
        request.check()?;
        let grant = trace::acquire(&*self.shared.engine, request).await?;
        Ok(Guard::new(grant, self.shared.clone()))
    }

    /// Returns the holders of a lock and its queue.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn who(&self, name: &str) -> Result<LockState, Error> {
        self.shared.engine.who(name).await.map(engines::split_owners)
    }

    /// Lists the locks whose names begin with `prefix`, one page at a time.
    ///
    /// `limit` is at most 1,000; 0 means 100. Pass the last name of the previous page as `after`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn locks(&self, prefix: &str, limit: u32, after: Option<&str>) -> Result<LockPage, Error> {
        self.shared.engine.locks(prefix, limit, after.unwrap_or_default()).await
    }

    /// Checks whether a token is still the last one granted for the lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn check_token(&self, lock: &str, token: Token) -> Result<TokenCheck, Error> {
        self.shared.engine.check_token(lock, token).await
    }

    /// Checks a sequencer, as returned by [`Guard::sequencer`](crate::Guard::sequencer).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn check_sequencer(&self, sequencer: &str) -> Result<TokenCheck, Error> {
        self.shared.engine.check_sequencer(sequencer).await
    }

    /// Creates a [`Scope`] with a generated name: one line of work that acquires several locks without deadlock.
    pub fn scope(&self) -> Scope<F> {
        // A scope is private to a session, and a session to a keeper, so a number is unique enough.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.scope_named(format_smolstr!("scope-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Creates a [`Scope`] with the given name. The same name continues the same scope.
    pub fn scope_named(&self, name: impl Into<SmolStr>) -> Scope<F> {
        Scope::new(self.clone(), name.into())
    }

    /// Creates a rate limiter shared by all instances: `rate_per_s` permits per second, with bursts of up to `burst`.
    pub fn limiter(&self, name: impl Into<SmolStr>, rate_per_s: f64, burst: u64) -> Limiter<F> {
        Limiter::new(self.clone(), name.into(), rate_per_s, burst)
    }

    /// Releases a lock regardless of its holders and makes their tokens stale. For operators; the reason is recorded.
    ///
    /// Returns the number of former holders and the lock's new last token.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if the answer was lost: check with [`who`](Keeper::who).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have freed the lock.
    pub async fn force_release(&self, name: &str, reason: &str) -> Result<ForcedRelease, Error> {
        self.shared.engine.force_release(name, reason).await
    }

    /// Returns the status of the cell, as seen by the connected node.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn status(&self) -> Result<Status, Error> {
        self.shared.engine.status().await
    }

    /// Subscribes to events of this keeper: connects and disconnects, jeopardy, lost sessions and guards.
    pub fn events(&self) -> Events {
        self.shared.engine.events()
    }

    /// Returns the IDs of the open sessions, one for each time to live in use.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn session_ids(&self) -> Result<Vec<String>, Error> {
        self.shared.engine.session_ids().await
    }

    /// Closes the keeper and all its clones: marks its guards as lost, then closes its sessions, which releases their locks.
    ///
    /// Waits until that is done, at most for the request timeout.
    ///
    /// # Cancel safety
    ///
    /// A dropped call continues in the background.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.engine.close().await
    }

    /// Returns what the engine supports and guarantees.
    pub fn capabilities(&self) -> &'static Capabilities {
        self.shared.engine.capabilities()
    }

    /// Examines the configuration of the engine's servers for weak spots, as `lockkeeper doctor` does.
    ///
    /// Returns an empty list if it finds none.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.shared.engine.examine().await
    }

    /// Returns the engine's name, such as `cell`.
    pub fn engine(&self) -> &'static str {
        self.shared.engine.name()
    }
}

impl<F: Fencing> Clone for Keeper<F> {
    fn clone(&self) -> Self {
        Keeper { shared: Arc::clone(&self.shared), fencing: PhantomData }
    }
}

impl<F: Fencing> fmt::Debug for Keeper<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("engine", &self.shared.engine.name())
            .field("owner", &self.shared.options.owner)
            .finish_non_exhaustive()
    }
}
