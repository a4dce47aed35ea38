//! What an engine must know: its recipe, and nothing of guards and callers.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use smol_str::SmolStr;

use super::Shape;
use crate::capabilities::{Capabilities, Finding};
use crate::error::Error;
use crate::view::ForcedRelease;

/// The recipe of an engine.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// What the engine knows of a session.
    type Session: Send + Sync + 'static;

    fn capabilities(&self) -> &'static Capabilities;

    /// Where it is, in the words of error messages.
    fn address(&self) -> String;

    /// Opens a session. If the answer is lost, it must end by itself.
    fn open(
        &self,
        ttl: Duration,
        lock_delay: Duration,
    ) -> impl Future<Output = Result<Opened<Self::Session>, Failure>> + Send;

    /// Renews a session; `Gone` only if the engine says so. Called by one task at a time.
    fn renew(&self, session: &Self::Session) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Renewals are not answered: the connection is not to be trusted.
    fn is_silent(&self) {}

    /// Resolves when the session may be gone, or is: its guards are in jeopardy then, and it is renewed at once. Engines
    /// without such news never do.
    fn alarmed(&self, _session: &Self::Session) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Ends a session and everything in its name.
    fn close(&self, session: &Self::Session) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Enters the queue. The same ticket twice is one entry. Never dropped in the middle, but for the keeper's end.
    fn enter(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
        mode: Try,
    ) -> impl Future<Output = Result<Entered, Failure>> + Send;

    /// Waits for the turn of an entry, and gives its token; `None` if the entry has vanished. May be dropped at any time.
    fn turn(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
    ) -> impl Future<Output = Result<Option<u64>, Failure>> + Send;

    /// Leaves the queue for good, whatever became of [`enter`](Backend::enter): after `Ok` no entry of this ticket
    /// exists, and none can appear. False if there was none.
    fn leave(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Resolves when a held entry is no longer there.
    fn taken_away(
        &self,
        session: &Self::Session,
        ticket: &Ticket,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// All entries of a lock, in order.
    fn queue(&self, lock: &str) -> impl Future<Output = Result<Vec<Queued>, Failure>> + Send;

    /// The names of locks that begin with a prefix; more may be among them.
    fn names(&self, prefix: &str) -> impl Future<Output = Result<Vec<String>, Failure>> + Send;

    /// Removes all who hold a lock.
    fn force_release(&self, lock: &str) -> impl Future<Output = Result<ForcedRelease, Failure>> + Send;

    /// Looks for what is not as safe as it could be.
    fn examine(&self) -> impl Future<Output = Result<Vec<Finding>, Failure>> + Send;

    /// The keeper is closed: nothing must stay open.
    fn end(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A session that was opened.
pub(crate) struct Opened<S> {
    pub(crate) id: String,
    pub(crate) session: S,
    /// What the engine grants, if it is less than what was asked for.
    pub(crate) ttl: Duration,
}

/// One request: what makes its entry unlike every other.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    /// Random, so that no entry of another time or process has the same name.
    pub(crate) id: String,
    pub(crate) lock: SmolStr,
    pub(crate) shape: Shape,
    /// What a candidate stands for.
    pub(crate) value: Option<SmolStr>,
    /// An answer to [`Backend::enter`] was lost: it may still come to pass.
    pub(crate) in_doubt: AtomicBool,
    /// The engine's own mark for the entry, once it is known.
    pub(crate) place: OnceLock<u64>,
    /// The same for its name, if the engine chooses one.
    pub(crate) path: OnceLock<String>,
}

impl Ticket {
    /// Who asks, with what a candidate stands for.
    pub(crate) fn signed(&self, owner: &str) -> String {
        crate::engines::signed(self.value.as_ref(), owner)
    }
}

/// Whether an entry that is not let in at once is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Try {
    /// At once or not at all.
    Once,
    Queue,
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It holds the lock, with this token.
    Holds(u64),
    /// It is in the queue.
    Waits,
    /// It was wanted at once or not at all, and there is no entry.
    Busy,
}

/// Why it did not work.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The session has ended: the engine says so.
    Gone,
    /// No answer, or none that decides: it may have happened. Try again.
    Unreachable(SmolStr),
    /// It did not happen, and will not.
    Refused(Error),
}

impl Failure {
    pub(crate) fn unreachable(why: impl Into<SmolStr>) -> Failure {
        Failure::Unreachable(why.into())
    }
}

/// An entry, as everybody can see it.
#[derive(Debug, Clone)]
pub(crate) struct Queued {
    pub(crate) session: String,
    pub(crate) owner: String,
    pub(crate) shape: Shape,
    pub(crate) token: u64,
    pub(crate) since: Duration,
}
