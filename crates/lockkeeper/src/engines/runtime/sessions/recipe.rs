//! The recipe of an engine with sessions: how its server opens, renews and closes a session, and how a request enters the
//! queue of a lock, waits there and leaves it.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use smol_str::SmolStr;

use crate::engines::runtime::{Claim, Failure, Server};

/// The recipe of an engine.
pub(crate) trait Recipe: Server {
    /// The recipe's data of a session.
    type Session: Send + Sync + 'static;

    /// Opens a session. If the answer is lost, the session must expire by itself.
    fn open(
        &self,
        ttl: Duration,
        lock_delay: Duration,
    ) -> impl Future<Output = Result<Opened<Self::Session>, Failure>> + Send;

    /// Renews a session; `Gone` only if the server reports it. Called by one task at a time.
    fn renew(&self, session: &Self::Session) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Called when renewals are not answered: the connection may be dead.
    fn on_renewal_timeout(&self) {}

    /// Resolves when the session is or may be gone: then its guards are in jeopardy and it is renewed at once. Never resolves
    /// on servers that do not report this.
    fn suspended(&self, _session: &Self::Session) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Closes a session and removes all its entries.
    fn close_session(&self, session: &Self::Session) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Enters the queue. Idempotent for the same ticket. Not dropped halfway, unless the keeper is closed.
    fn enter(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
        mode: Try,
    ) -> impl Future<Output = Result<Entered, Failure>> + Send;

    /// Waits until an entry holds the lock, and returns its token; `None` if the entry has vanished. Can be dropped at
    /// any await.
    fn wait(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
    ) -> impl Future<Output = Result<Option<u64>, Failure>> + Send;

    /// Leaves the queue permanently, also after an [`enter`](Recipe::enter) with an unknown outcome: after `Ok`, no entry of this
    /// ticket exists or can appear. False if there was none.
    fn leave(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Resolves when a held entry no longer exists.
    fn taken_away(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// An opened session.
pub(crate) struct Opened<S> {
    pub(crate) id: String,
    pub(crate) session: S,
    /// The time to live that the server grants, if it is less than the requested one.
    pub(crate) ttl: Duration,
}

/// One request: what identifies its entry.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    /// Random, so that no entry of an earlier run or another process has the same name.
    pub(crate) id: String,
    pub(crate) lock: SmolStr,
    pub(crate) claim: Claim,
    /// What a candidate announces.
    pub(crate) value: Option<SmolStr>,
    /// An answer to [`Recipe::enter`] was lost: the entry may still appear.
    pub(crate) in_doubt: AtomicBool,
    /// The server's own number for the entry, once it is known.
    pub(crate) place: OnceLock<u64>,
    /// The entry's name, if the server chooses it.
    pub(crate) path: OnceLock<String>,
}

impl Ticket {
    /// The owner, with what a candidate announces.
    pub(crate) fn owner_with_value(&self, owner: &str) -> String {
        crate::engines::owner_with_value(self.value.as_ref(), owner)
    }
}

/// Whether an entry that does not hold the lock at once stays in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Try {
    /// The entry must hold the lock at once, or not be created.
    Once,
    Queue,
}

/// Result of entering the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It holds the lock, with this token.
    Holds(u64),
    /// It is in the queue.
    Waits,
    /// The lock is busy, and there is no entry because of [`Try::Once`].
    Busy,
}
