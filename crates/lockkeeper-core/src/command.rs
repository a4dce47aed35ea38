//! What can be asked of the lock table. Commands are data: they are written to the log, and every node
//! applies the same ones in the same order.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::access::AccessChange;
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
use crate::limiter::TakeRate;
use crate::scope::Policy;

/// All that was queued on the leader, stamped with cell time: the content of one log entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Cell time, stamped by the leader (S2).
    pub now: CellTime,
    /// The leader's wall clock, in milliseconds since 1970 UTC. It is recorded with events for people; nothing is decided
    /// by it.
    pub utc_ms: u64,
    /// The commands, in the order of their arrival.
    pub commands: Vec<Command>,
}

/// One request to the lock table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Open a session. The id is drawn by the leader, because the table draws nothing.
    OpenSession {
        /// The new session's id.
        session: SessionId,
        /// How long it lives without a renewal.
        ttl_ms: u64,
        /// Who it is, for people: host, process, label.
        owner: SmolStr,
    },
    /// End a session on its client's own wish: its locks are free at once, without lock-delay.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// End a session that was not renewed. It does nothing if the session has moved on since (S3).
    ExpireSession {
        /// The session.
        session: SessionId,
        /// The version that the leader saw when it decided.
        version: u64,
    },
    /// Take one lock, or several at once.
    Acquire(Acquire),
    /// The caller no longer wants what it asked for: leave the queue, or give back what was granted.
    Cancel {
        /// The session that asked.
        session: SessionId,
        /// Which of its requests.
        what: Waiting,
    },
    /// Give a lock back.
    Release {
        /// The session that holds it.
        session: SessionId,
        /// The lock.
        lock: LockName,
        /// The token of the grant (S8).
        token: Token,
        /// The client will never repeat the request that was granted: its answer can be forgotten.
        forget: bool,
    },
    /// Free a lock whoever holds it, and raise its last token so that the holder is stale at every gate.
    ForceRelease {
        /// The lock.
        lock: LockName,
        /// Why, in the operator's words.
        reason: SmolStr,
    },
    /// Write a value.
    PutValue {
        /// Its key.
        key: SmolStr,
        /// The new content.
        value: Arc<[u8]>,
        /// Write only while this lock's last token is this one.
        fence: Option<Fence>,
        /// Write only if the value has this version; 0 means that it must not exist.
        if_version: Option<u64>,
    },
    /// Remove a value.
    DeleteValue {
        /// Its key.
        key: SmolStr,
        /// Remove only while this lock's last token is this one.
        fence: Option<Fence>,
        /// Remove only if the value has this version.
        if_version: Option<u64>,
    },
    /// Pass a lock on to one of those who wait for it, whoever is first in line.
    HandOver {
        /// The session that holds it.
        session: SessionId,
        /// The lock.
        lock: LockName,
        /// The token of the grant.
        token: Token,
        /// The value, or else the owner, of the one who shall have it.
        to: SmolStr,
    },
    /// Take permits of a rate.
    TakeRate(TakeRate),
    /// Nothing but time: ends waits and lock-delays that are due, and takes back what ended sessions held.
    Tick,
    /// What is done in somebody's name.
    Signed(Box<Signed>),
}

/// Something that an identity does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signed {
    /// Who. The node has made sure of it before the command was queued; empty if nobody is known.
    pub by: SmolStr,
    /// What.
    pub what: SignedWhat,
}

/// What identities do that has to be remembered with their name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum SignedWhat {
    /// Open a session that belongs to the identity: nobody else can speak for it.
    OpenSession {
        /// The new session's id.
        session: SessionId,
        /// How long it lives without a renewal.
        ttl_ms: u64,
        /// Who it is, for people.
        owner: SmolStr,
    },
    /// As [`Command::ForceRelease`].
    ForceRelease {
        /// The lock.
        lock: LockName,
        /// Why, in the operator's words.
        reason: SmolStr,
    },
    /// Change rules, tokens or quotas.
    Access(AccessChange),
    /// Something that was done elsewhere, for the audit trail.
    Note(SmolStr),
}

impl Command {
    /// The session that it opens.
    pub fn opens(&self) -> Option<SessionId> {
        match self {
            Command::OpenSession { session, .. } => Some(*session),
            Command::Signed(signed) => match &signed.what {
                SignedWhat::OpenSession { session, .. } => Some(*session),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A request for one lock, or for several all or nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acquire {
    /// The session that will hold it.
    pub session: SessionId,
    /// The client's id for this request, by which a retry is recognised (S5).
    pub request: Option<RequestId>,
    /// The lock or locks.
    pub locks: Locks,
    /// Alone, or together with others.
    pub mode: Mode,
    /// How many permits of a counted lock.
    pub permits: Option<u32>,
    /// The capacity that a counted lock shall have.
    pub capacity: Option<u32>,
    /// Whether and how long to wait.
    pub wait: Wait,
    /// How long the locks stay closed if the session dies while holding them (S9).
    pub lock_delay_ms: u64,
    /// The line of work that it belongs to. Scopes are private to their session.
    pub scope: Option<SmolStr>,
    /// What to do when another scope is in the way.
    pub policy: Policy,
    /// What a candidate stands for.
    pub value: Option<SmolStr>,
}

impl Acquire {
    /// Exclusive, without waiting, without a request id.
    pub fn new(session: SessionId, locks: Locks) -> Acquire {
        Acquire {
            session,
            request: None,
            locks,
            mode: Mode::Exclusive,
            permits: None,
            capacity: None,
            wait: Wait::No,
            lock_delay_ms: 0,
            scope: None,
            policy: Policy::Detect,
            value: None,
        }
    }
}

/// One lock or several. Nearly every request names one, which then costs no allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locks {
    /// One lock.
    One(LockName),
    /// Several, in order of name, none twice.
    Many(Arc<[LockName]>),
}

impl Locks {
    /// The locks as a slice.
    pub fn as_slice(&self) -> &[LockName] {
        match self {
            Locks::One(name) => std::slice::from_ref(name),
            Locks::Many(names) => names,
        }
    }

    /// Several locks, sorted and without repetition: the order in which they are taken is always the same.
    pub fn many(names: impl IntoIterator<Item = LockName>) -> Locks {
        let mut names: Vec<LockName> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        match names.len() {
            1 => Locks::One(names.remove(0)),
            _ => Locks::Many(names.into()),
        }
    }
}

/// Alone, or together with others of the same mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Mode {
    /// Nobody else.
    #[default]
    Exclusive,
    /// Others in shared mode may hold it too.
    Shared,
}

impl Mode {
    /// The word used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

/// How long a request waits in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Wait {
    /// Not at all: granted at once, or `Busy`.
    #[default]
    No,
    /// This long.
    ForMs(u64),
    /// Until it is granted, cancelled, or its session ends.
    Forever,
}

/// A request that may still be waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// By the client's id.
    Request(RequestId),
    /// By its place in the queue.
    Ticket(Ticket),
}

/// A token as the condition of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The lock that the writer holds.
    pub lock: LockName,
    /// The token that it was granted.
    pub token: Token,
}
