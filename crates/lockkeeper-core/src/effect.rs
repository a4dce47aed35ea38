//! What follows from an entry. Effects are data: the node turns them into replies, pushes and timers.

use serde::{Deserialize, Serialize};

use crate::command::{Locks, Mode};
use crate::id::{LockName, RequestId, SessionId, Ticket, Token};
use crate::refusal::Refusal;

/// The answer to one command.
pub type Answer = Result<Reply, Refusal>;

/// All that follows from one entry.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Applied {
    /// One answer for each command, in the same order.
    pub answers: Vec<Answer>,
    /// What happened to others, in the order in which it happened.
    pub effects: Vec<Effect>,
}

/// A command that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, and there is nothing more to say.
    Done,
    /// The session is open.
    SessionOpened {
        /// Its time to live.
        ttl_ms: u64,
        /// The version that an expiry has to name.
        version: u64,
    },
    /// The lock is held.
    Granted(Grant),
    /// The request waits; an [`Effect::Granted`] or [`Effect::Ended`] with this ticket will follow.
    Queued {
        /// Its place in the queue.
        ticket: Ticket,
    },
    /// The lock was freed by force.
    Forced {
        /// How many grants were taken away.
        released: u32,
        /// The lock's last token, now higher than that of any former holder.
        last_token: Token,
    },
    /// Permits of a rate were taken, or not.
    Rate {
        /// Whether they were.
        allowed: bool,
        /// If not: when to come back.
        retry_after_ms: u64,
    },
    /// The value was written.
    Put {
        /// Its new version.
        version: u64,
    },
}

/// A holder let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The lock or locks.
    pub locks: Locks,
    /// The fencing token, one for all of them.
    pub token: Token,
    /// Alone or shared.
    pub mode: Mode,
}

/// Something that happened to somebody else than the sender of the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// A waiting request was granted.
    Granted {
        /// The session that holds it now.
        session: SessionId,
        /// The ticket it waited with.
        ticket: Ticket,
        /// The client's id of the request, if it gave one.
        request: Option<RequestId>,
        /// What was granted.
        grant: Grant,
        /// How long it waited, in cell time.
        waited_ms: u64,
    },
    /// A wait ended without a grant.
    Ended {
        /// The session that waited.
        session: SessionId,
        /// The ticket it waited with.
        ticket: Ticket,
        /// The client's id of the request, if it gave one.
        request: Option<RequestId>,
        /// Why.
        refusal: Refusal,
        /// Alone or shared.
        mode: Mode,
        /// How long it waited, in cell time.
        waited_ms: u64,
    },
    /// A grant ended, one way or the other.
    Freed {
        /// The session that held it.
        session: SessionId,
        /// The lock.
        lock: LockName,
        /// The token, which is now stale.
        token: Token,
        /// How it ended.
        why: Freed,
        /// How long it was held, in cell time.
        held_ms: u64,
    },
    /// A session ended; nothing can be asked in its name any more.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// How it ended.
        why: SessionEnd,
    },
    /// An expiry was refused because the session had moved on: its timer must be set anew.
    ExpiryStale {
        /// The session, alive.
        session: SessionId,
    },
}

/// How a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freed {
    /// Its holder gave it back.
    Released,
    /// Its session closed.
    SessionClosed,
    /// Its session expired.
    SessionExpired,
    /// An operator took it away.
    Forced,
    /// Its caller had gone before it could be told.
    Cancelled,
    /// An older scope took it.
    Wounded,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was not renewed in time.
    Expired,
}
