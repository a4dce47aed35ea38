//! Commands to the lock table. Commands are data: they are written to the log, and every node applies the same ones in
//! the same order.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::access::AccessChange;
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
use crate::limiter::TakeRate;
use crate::scope::Policy;
use crate::version::CellVersion;
use crate::work::LOCK_STEPS;

/// Prefix of the request ids that nodes generate for callers that gave none.
pub const NODE_REQUEST_PREFIX: &str = "~";

/// Advice to the caller of an unknown command that may have been executed (S12).
pub const RETRY_ADVICE: &str =
    "with a request id, retry with the same id; without one, check first whether it took effect";

/// The commands that were queued on the leader, stamped with cell time: the content of one log entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Cell time, stamped by the leader (S2).
    pub now: CellTime,
    /// The leader's wall clock, in milliseconds since 1970 UTC. Recorded with events for people; never used for decisions.
    pub utc_ms: u64,
    /// The commands, in the order of their arrival.
    pub commands: Vec<Command>,
}

/// One request to the lock table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Open a session. The leader generates the id, because the table has no randomness.
    OpenSession {
        /// The new session's id.
        session: SessionId,
        /// Its time to live without a renewal.
        ttl_ms: u64,
        /// Description of the client for people: host, process, label.
        owner: SmolStr,
        /// The authenticated caller, verified by the node before the command was queued. Only this identity can use the
        /// session.
        identity: Option<SmolStr>,
    },
    /// Close a session at its client's request: its locks are free at once, without lock-delay.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Expire a session that was not renewed. Does nothing if the session was active since (S3).
    ExpireSession {
        /// The session.
        session: SessionId,
        /// The version that the leader saw when it decided.
        version: u64,
    },
    /// Take one lock, or several at once.
    Acquire(Acquire),
    /// Cancel a request: leave the queue, or release what was granted.
    Cancel {
        /// The session of the request.
        session: SessionId,
        /// The request.
        what: Waiting,
    },
    /// Release a lock.
    Release {
        /// The session that holds it.
        session: SessionId,
        /// The lock.
        lock: LockName,
        /// The token of the grant (S8).
        token: Token,
        /// The client will never retry the granted request: its answer can be forgotten.
        forget: bool,
    },
    /// Free a lock whoever holds it, and raise its last token so that every gate refuses the holder.
    ForceRelease {
        /// The lock.
        lock: LockName,
        /// Why, in the operator's words.
        reason: SmolStr,
        /// The authenticated caller; empty if unknown.
        by: SmolStr,
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
    /// Delete a value.
    DeleteValue {
        /// Its key.
        key: SmolStr,
        /// Delete only while this lock's last token is this one.
        fence: Option<Fence>,
        /// Delete only if the value has this version.
        if_version: Option<u64>,
    },
    /// Hand a lock over to one of its waiters, whatever its place in the queue.
    HandOver {
        /// The session that holds it.
        session: SessionId,
        /// The lock.
        lock: LockName,
        /// The token of the grant.
        token: Token,
        /// The value, or else the owner, of the waiter that shall have it.
        to: SmolStr,
    },
    /// Take permits of a rate.
    TakeRate(TakeRate),
    /// Advance time: ends waits and lock-delays that are due, and frees what ended sessions held.
    Tick,
    /// Change rules, tokens or quotas.
    ChangeAccess {
        /// The authenticated caller; empty if unknown.
        by: SmolStr,
        /// What to change.
        change: AccessChange,
    },
    /// Record an action outside the table in the audit trail.
    AuditNote {
        /// The authenticated caller; empty if unknown.
        by: SmolStr,
        /// The action, in one line.
        text: SmolStr,
    },
    /// Raise the version of the cell. Does nothing if the cell already has that version.
    RaiseCellVersion {
        /// The new version.
        to: CellVersion,
    },
    /// A command that needs the next version of the cell: an audit note.
    #[cfg(feature = "next-version")]
    NextVersionNote {
        /// The note.
        text: SmolStr,
    },
}

impl Command {
    /// The name used in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Command::OpenSession { .. } => "open_session",
            Command::CloseSession { .. } => "close_session",
            Command::ExpireSession { .. } => "expire_session",
            Command::Acquire(_) => "acquire",
            Command::Release { .. } => "release",
            Command::Cancel { .. } => "cancel",
            Command::ForceRelease { .. } => "force_release",
            Command::PutValue { .. } => "put_value",
            Command::DeleteValue { .. } => "delete_value",
            Command::HandOver { .. } => "hand_over",
            Command::TakeRate(_) => "take_rate",
            Command::ChangeAccess { .. } => "change_access",
            Command::AuditNote { .. } => "audit_note",
            Command::Tick => "tick",
            Command::RaiseCellVersion { .. } => "raise_cell_version",
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => "next_version_note",
        }
    }

    /// The lock that it names, or the first of several.
    pub fn lock(&self) -> Option<&str> {
        match self {
            Command::Acquire(request) => request.locks.as_slice().first().map(|name| name.as_str()),
            Command::Release { lock, .. }
            | Command::ForceRelease { lock, .. }
            | Command::HandOver { lock, .. } => Some(lock),
            _ => None,
        }
    }

    /// The session that it names.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Command::Acquire(request) => Some(request.session),
            Command::OpenSession { session, .. }
            | Command::CloseSession { session }
            | Command::ExpireSession { session, .. }
            | Command::Release { session, .. }
            | Command::HandOver { session, .. }
            | Command::Cancel { session, .. } => Some(*session),
            _ => None,
        }
    }

    /// The session that it opens.
    pub fn opens(&self) -> Option<SessionId> {
        match self {
            Command::OpenSession { session, .. } => Some(*session),
            _ => None,
        }
    }

    /// Approximate size in bytes, in memory and in the log.
    pub fn size(&self) -> usize {
        const FIXED: usize = 96;
        let length = |text: &Option<SmolStr>| text.as_ref().map_or(0, |text| text.len());
        FIXED
            + match self {
                Command::PutValue { key, value, .. } => key.len() + value.len(),
                Command::OpenSession { owner, identity, .. } => owner.len() + length(identity),
                Command::Acquire(request) => {
                    let locks: usize = request.locks.as_slice().iter().map(|name| name.len()).sum();
                    locks + length(&request.scope) + length(&request.value)
                }
                Command::Release { lock, .. } => lock.len(),
                Command::ForceRelease { lock, reason, by } => lock.len() + reason.len() + by.len(),
                Command::DeleteValue { key, .. } => key.len(),
                Command::HandOver { lock, to, .. } => lock.len() + to.len(),
                Command::TakeRate(take) => take.limiter.len(),
                Command::ChangeAccess { by, change } => by.len() + change.bytes(),
                Command::AuditNote { by, text } => by.len() + text.len(),
                #[cfg(feature = "next-version")]
                Command::NextVersionNote { text } => text.len(),
                Command::CloseSession { .. }
                | Command::ExpireSession { .. }
                | Command::Cancel { .. }
                | Command::RaiseCellVersion { .. }
                | Command::Tick => 0,
            }
    }

    /// Estimated cost of applying it, in steps (see `work.rs`). Further work that it causes is bounded by the
    /// budgets of the entry.
    pub fn cost(&self) -> u64 {
        match self {
            Command::Acquire(request) => {
                let locks = LOCK_STEPS * request.locks.as_slice().len() as u64;
                match (&request.scope, request.policy) {
                    (None, _) => locks,
                    // It may have to take locks from others.
                    (Some(_), Policy::WoundWait) => locks + 256,
                    // It may have to search for a cycle.
                    (Some(_), _) => locks + 16,
                }
            }
            // A lock is freed, and granted to the next waiter.
            Command::Release { .. } | Command::Cancel { .. } | Command::HandOver { .. } => 2 * LOCK_STEPS,
            Command::ForceRelease { .. } | Command::ChangeAccess { .. } => 64,
            // A session ends: it leaves all indexes, and what it holds is freed.
            Command::CloseSession { .. } | Command::ExpireSession { .. } => 4 * LOCK_STEPS,
            Command::OpenSession { .. }
            | Command::PutValue { .. }
            | Command::DeleteValue { .. }
            | Command::TakeRate(_)
            | Command::AuditNote { .. }
            | Command::RaiseCellVersion { .. }
            | Command::Tick => LOCK_STEPS,
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => LOCK_STEPS,
        }
    }

    /// Advice to the caller if the answer is lost and the command may have been executed (S12). Not every command can be
    /// retried.
    pub fn retry_advice(&self) -> &'static str {
        match self {
            Command::Acquire(request) if request.has_client_id() => "retry with the same request id",
            Command::Acquire(_) => {
                "check who holds the lock before you retry, or close the session, which releases everything; with a \
                 request id it could simply be retried"
            }
            Command::Release { .. } => "retry: not_held means that it was released",
            Command::CloseSession { .. } => "retry: session_lost means that it was closed",
            Command::Cancel { .. } => "retry",
            Command::OpenSession { .. } => "open another session; this one, if it was opened, expires",
            Command::PutValue { .. } | Command::DeleteValue { .. } => "read the value before you retry",
            Command::ForceRelease { .. } => {
                "check who holds the lock before you retry: it may be the next holder by now"
            }
            Command::HandOver { .. } => "check who holds the lock before you retry",
            Command::TakeRate(_) => "the permits may be taken: retry only if they may be taken twice",
            Command::ChangeAccess { .. } => "check the rules, tokens and quotas before you retry",
            Command::AuditNote { .. } => "check the members before you retry",
            // The node proposes these itself and retries them.
            Command::ExpireSession { .. } | Command::Tick | Command::RaiseCellVersion { .. } => RETRY_ADVICE,
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => RETRY_ADVICE,
        }
    }

    /// Steps that are allotted to it beyond those of a command for one lock.
    pub(crate) fn steps_of_further_locks(&self) -> u64 {
        match self {
            Command::Acquire(request) => {
                LOCK_STEPS * (request.locks.as_slice().len() as u64).saturating_sub(1)
            }
            _ => 0,
        }
    }

    /// Whether it frees or ends something, or comes from an administrator. Such commands are accepted as long as the log
    /// accepts anything (S11).
    pub fn frees(&self) -> bool {
        match self {
            Command::Release { .. }
            | Command::Cancel { .. }
            | Command::CloseSession { .. }
            | Command::ExpireSession { .. }
            | Command::ForceRelease { .. }
            | Command::DeleteValue { .. }
            | Command::HandOver { .. }
            | Command::ChangeAccess { .. }
            | Command::AuditNote { .. }
            | Command::RaiseCellVersion { .. }
            | Command::Tick => true,
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => true,
            Command::OpenSession { .. }
            | Command::Acquire(_)
            | Command::PutValue { .. }
            | Command::TakeRate(_) => false,
        }
    }
}

/// A request for one lock, or for several, all or nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acquire {
    /// The session that will hold it.
    pub session: SessionId,
    /// The client's id for this request. Identifies retries (S5).
    pub request: Option<RequestId>,
    /// The lock or locks.
    pub locks: Locks,
    /// Exclusive or shared.
    pub mode: Mode,
    /// The number of permits of a counted lock.
    pub permits: Option<u32>,
    /// The capacity of a counted lock.
    pub capacity: Option<u32>,
    /// Whether and how long to wait.
    pub wait: Wait,
    /// How long the locks stay closed if the session expires while holding them (S9).
    pub lock_delay_ms: u64,
    /// The scope of the request. Scopes are private to their session.
    pub scope: Option<SmolStr>,
    /// What to do when another scope is in the way.
    pub policy: Policy,
    /// The value of a candidate in an election.
    pub value: Option<SmolStr>,
}

impl Acquire {
    /// Whether the client chose the request id. It does not know one that a node generated.
    fn has_client_id(&self) -> bool {
        self.request.as_ref().is_some_and(|id| !id.starts_with(NODE_REQUEST_PREFIX))
    }

    /// An exclusive request that does not wait and has no request id.
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

/// One lock or several. Nearly every request names one, which needs no allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locks {
    /// One lock.
    One(LockName),
    /// Several, sorted by name, without duplicates.
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

    /// Several locks, sorted and without duplicates, so that they are always acquired in the same order.
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

/// The mode of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The only holder.
    #[default]
    Exclusive,
    /// Together with other shared holders.
    Shared,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

    /// The name used in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

impl FromStr for Mode {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Mode, UnknownName> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == name).ok_or(UnknownName)
    }
}

/// Error for a text that names no mode, policy or right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown name")]
pub struct UnknownName;

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How long a request waits in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Wait {
    /// It does not wait: granted at once, or `Busy`.
    #[default]
    No,
    /// For this long.
    ForMs(u64),
    /// Until it is granted, cancelled, or its session ends.
    Forever,
}

/// Reference to a request that may still be waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// By the client's request id.
    Request(RequestId),
    /// By its ticket.
    Ticket(Ticket),
}

/// A fencing condition of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The lock that the writer holds.
    pub lock: LockName,
    /// The token of its grant.
    pub token: Token,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_acquire_with_a_client_id_is_retried_with_the_same_id() {
        let session = SessionId(1);
        let acquire = Acquire::new(session, Locks::One("a".into()));
        let with = |id: &str| Command::Acquire(Acquire { request: Some(id.into()), ..acquire.clone() });
        assert_eq!(with("r1").retry_advice(), "retry with the same request id");
        let put = Command::PutValue { key: "k".into(), value: vec![1].into(), fence: None, if_version: None };
        let force = Command::ForceRelease { lock: "a".into(), reason: "stuck".into(), by: "".into() };
        let open = Command::OpenSession { session, ttl_ms: 1_000, owner: "me".into(), identity: None };
        let release = Command::Release { session, lock: "a".into(), token: Token(1), forget: false };
        for (command, next) in [
            (with("~1-1"), "check who holds the lock"),
            (Command::Acquire(acquire.clone()), "check who holds the lock"),
            (put, "read the value before you retry"),
            (force, "check who holds the lock"),
            (open, "open another session"),
            (release, "not_held means that it was released"),
        ] {
            let advice = command.retry_advice();
            assert!(advice.contains(next), "{advice}");
            assert!(!advice.contains("the same request id"), "it has none: {advice}");
        }
    }
}
