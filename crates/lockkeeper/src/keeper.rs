//! The keeper: one connection to an engine, shared by all locks of a program.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_core::{Locks, Token};
use smol_str::{SmolStr, format_smolstr};

use crate::capabilities::{Capabilities, Finding, TokenKind};
use crate::election::Election;
use crate::engines::{self, Engine};
use crate::error::Error;
use crate::events::Events;
use crate::fencing::{Fenced, Fencing, Unfenced};
use crate::limiter::Limiter;
use crate::lock::Lock;
use crate::lock_all::LockAll;
use crate::once::Once;
use crate::options::{KeeperBuilder, Options};
use crate::scope::Scope;
use crate::value::ValueHandle;
use crate::view::{ForcedRelease, LockPage, LockState, Status, TokenCheck};

/// Hands out locks. Cheap to clone; all clones share one connection, and one session for each time to live.
///
/// A keeper reconnects by itself. When the last clone and the last guard are gone, its sessions are closed in the
/// background; a program that is about to end should call [`close`](Keeper::close), because what its runtime had no
/// time to send stays held until its time to live is over.
pub struct Keeper<F: Fencing = Fenced> {
    pub(crate) shared: Arc<Shared>,
    fencing: PhantomData<fn() -> F>,
}

/// What all clones and guards share.
pub(crate) struct Shared {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) options: Options,
}

impl Keeper {
    /// Connects to an engine that can fence.
    ///
    /// [`EngineInfo`](crate::EngineInfo) has a table of the URLs. Redlock cannot fence, so it is only for
    /// [`connect_unfenced`](Keeper::connect_unfenced); the tokens of Redis are volatile, see
    /// [`KeeperBuilder::accept_volatile_tokens`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if nobody answers within the connect timeout, [`Error::Unsupported`] if the engine cannot
    /// fence or is not built in, [`Error::Invalid`] if the URL makes no sense.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Keeper<Fenced>, Error> {
        KeeperBuilder::default().connect(url).await
    }

    /// A builder, to set the owner, the default time to live, and time limits.
    pub fn builder() -> KeeperBuilder {
        KeeperBuilder::default()
    }
}

impl Keeper<Unfenced> {
    /// Connects to any engine, also to one that cannot fence. Its guards have no token; see [`Unfenced`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call leaves nothing behind.
    pub async fn connect_unfenced(url: &str) -> Result<Keeper<Unfenced>, Error> {
        KeeperBuilder::default().connect_unfenced(url).await
    }
}

impl Keeper {
    /// An election: who leads. Its epoch is a token, so only an engine that can fence holds one.
    pub fn election(&self, name: impl Into<SmolStr>) -> Election {
        Election::new(self.clone(), name.into())
    }

    /// A step that is done once, whoever comes and however often. Needs an engine that keeps values.
    pub fn once(&self, name: impl Into<SmolStr>) -> Once {
        Once::new(self.clone(), name.into())
    }
}

impl<F: Fencing> Keeper<F> {
    pub(crate) fn new(engine: Box<dyn Engine>, options: Options) -> Keeper<F> {
        Keeper { shared: Arc::new(Shared { engine, options }), fencing: PhantomData }
    }

    /// The same keeper with guards that have tokens, if its engine can fence: asked once, at the start of a program.
    pub fn fenced(&self) -> Result<Keeper<Fenced>, Error> {
        let engine = &self.shared.engine;
        match engine.capabilities().token {
            TokenKind::Durable => {}
            TokenKind::Volatile if self.shared.options.accepts_volatile_tokens => {}
            TokenKind::Volatile => {
                return Err(Error::unsupported(format!(
                    "the tokens of {} do not survive the loss of its server: after that, a low number can be given again \
                     and a stale holder pass for a new one. Use it with `Keeper::connect_unfenced` where doing the work \
                     twice does no harm, say `accept_volatile_tokens()` (on the command line \
                     --accept-volatile-tokens) if you accept that, or choose an engine with durable tokens",
                    engine.name()
                )));
            }
            TokenKind::None => {
                return Err(Error::unsupported(format!(
                    "{} cannot fence: its locks have no token that rises. Use it with `Keeper::connect_unfenced` where \
                     doing the work twice does no harm, or choose an engine that can fence",
                    engine.name()
                )));
            }
        }
        Ok(Keeper { shared: Arc::clone(&self.shared), fencing: PhantomData })
    }

    /// A lock, to be acquired once or many times.
    pub fn lock(&self, name: impl Into<SmolStr>) -> Lock<F> {
        Lock::new(self.clone(), name.into())
    }

    /// Several locks at once, all or nothing, with one token. Their order does not matter: no deadlock.
    pub fn lock_all<N: Into<SmolStr>>(&self, names: impl IntoIterator<Item = N>) -> LockAll<F> {
        LockAll::new(self.clone(), Locks::many(names.into_iter().map(Into::into)))
    }

    /// A small value that is kept beside the locks.
    pub fn value(&self, key: impl Into<String>) -> ValueHandle<F> {
        ValueHandle::new(self.clone(), key.into())
    }

    /// Who holds a lock and who waits for it.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn who(&self, name: &str) -> Result<LockState, Error> {
        self.shared.engine.who(name).await.map(engines::split_owners)
    }

    /// The locks whose names begin with `prefix`, one page after the other: pass the last name of the page before as
    /// `after`. At most 1,000 to a page; 0 means 100.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn locks(&self, prefix: &str, limit: u32, after: Option<&str>) -> Result<LockPage, Error> {
        self.shared.engine.locks(prefix, limit, after.unwrap_or_default()).await
    }

    /// Whether a token is still the last one granted for the lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn check_token(&self, lock: &str, token: Token) -> Result<TokenCheck, Error> {
        self.shared.engine.check_token(lock, token).await
    }

    /// The same for a sequencer, as given by [`Guard::sequencer`](crate::Guard::sequencer).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn check_sequencer(&self, sequencer: &str) -> Result<TokenCheck, Error> {
        self.shared.engine.check_sequencer(sequencer).await
    }

    /// A line of work that takes several locks and must not end in a deadlock; it is given a name of its own.
    pub fn scope(&self) -> Scope<F> {
        // Scopes are private to a session, and a session to a keeper: a number is enough.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.scope_named(format_smolstr!("scope-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The same with a name of your own, to go on with a line of work: the same name is the same scope.
    pub fn scope_named(&self, name: impl Into<SmolStr>) -> Scope<F> {
        Scope::new(self.clone(), name.into())
    }

    /// A rate that all instances share: so many a second, and up to `burst` at once after a pause.
    pub fn limiter(&self, name: impl Into<SmolStr>, rate_per_s: f64, burst: u64) -> Limiter<F> {
        Limiter::new(self.clone(), name.into(), rate_per_s, burst)
    }

    /// Frees a lock whoever holds it, and makes its holders' tokens stale. For operators; the reason is recorded.
    /// Answers how many holders there were, and the lock's new last token.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if the answer was lost: look with [`who`](Keeper::who).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have freed the lock.
    pub async fn force_release(&self, name: &str, reason: &str) -> Result<ForcedRelease, Error> {
        self.shared.engine.force_release(name, reason).await
    }

    /// How the cell is, as the node that we talk to sees it.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn status(&self) -> Result<Status, Error> {
        self.shared.engine.status().await
    }

    /// What happens from now on: connections lost and found, jeopardy, lost sessions and guards.
    pub fn events(&self) -> Events {
        self.shared.engine.events()
    }

    /// The ids of the sessions that are open now, one for each time to live in use.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn session_ids(&self) -> Result<Vec<String>, Error> {
        self.shared.engine.session_ids().await
    }

    /// Ends everything: guards are lost first, then the sessions are closed, which frees what they held.
    /// Waits until that is done, or until the request timeout. All clones are closed with it.
    ///
    /// # Cancel safety
    ///
    /// A dropped call goes on in the background.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.engine.close().await
    }

    /// What the engine can and cannot promise.
    pub fn capabilities(&self) -> &'static Capabilities {
        self.shared.engine.capabilities()
    }

    /// Looks for what is not as safe as it could be in the set-up of the engine's servers: `lockkeeper doctor`.
    /// An empty list means that nothing was found.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.shared.engine.examine().await
    }

    /// The engine's name, such as `cell`.
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
