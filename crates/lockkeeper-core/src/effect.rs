//! Effects of an entry. Effects are data: the node turns them into replies, pushes and timers.

use serde::{Deserialize, Serialize};

use crate::command::{Locks, Mode};
use crate::id::{LockName, RequestId, SessionId, Ticket, Token};
use crate::lock::Held;
use crate::refusal::Refusal;

/// The answer to one command.
pub type Answer = Result<Reply, Refusal>;

/// The result of applying one entry.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Applied {
    /// One answer for each command, in the same order.
    pub answers: Vec<Answer>,
    /// The effects on others, in order.
    pub effects: Vec<Effect>,
}

/// The answer to a command that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
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
    /// The result of taking permits of a rate.
    Rate {
        /// Whether they were taken.
        allowed: bool,
        /// If not: when to retry.
        retry_after_ms: u64,
    },
    /// The value was written.
    Put {
        /// Its new version.
        version: u64,
    },
}

/// A grant of a lock, or of several at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The lock or locks.
    pub locks: Locks,
    /// The fencing token, one for all of them.
    pub token: Token,
    /// Exclusive or shared.
    pub mode: Mode,
}

impl Grant {
    /// What the caller is told of a grant.
    pub(crate) fn new(held: &Held, token: Token) -> Grant {
        Grant { locks: held.locks.clone(), token, mode: held.mode }
    }
}

/// Something that happened to others than the sender of the command.
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
        /// Exclusive or shared.
        mode: Mode,
        /// How long it waited, in cell time.
        waited_ms: u64,
    },
    /// A grant of a lock ended.
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
    /// A session ended. Its further commands are refused.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// How it ended.
        why: SessionEnd,
    },
    /// An expiry was stale because the session was active: its timer must be reset.
    ExpiryStale {
        /// The session, alive.
        session: SessionId,
    },
}

/// How a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freed {
    /// Its holder released it.
    Released,
    /// Its session closed.
    SessionClosed,
    /// Its session expired.
    SessionExpired,
    /// An operator took it away.
    Forced,
    /// Its caller cancelled the request.
    Cancelled,
    /// An older scope took it.
    Wounded,
}

impl Freed {
    /// The name used in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Freed::Released => "released",
            Freed::SessionClosed => "session_closed",
            Freed::SessionExpired => "session_expired",
            Freed::Forced => "forced",
            Freed::Cancelled => "cancelled",
            Freed::Wounded => "wounded",
        }
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was not renewed in time.
    Expired,
}

impl SessionEnd {
    /// The name used in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            SessionEnd::Closed => "closed",
            SessionEnd::Expired => "expired",
        }
    }
}
