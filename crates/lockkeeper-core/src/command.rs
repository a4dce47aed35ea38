//! What can be asked of the lock table. Commands are data: they are written to the log, and every node
//! applies the same ones in the same order.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::access::AccessChange;
use crate::id::{CellTime, LockName, RequestId, SessionId, Ticket, Token};
use crate::limiter::TakeRate;
use crate::scope::Policy;
use crate::version::CellVersion;
use crate::work::LOCK_STEPS;

/// Request ids that begin like this are drawn by nodes, for callers that gave none.
pub const NODE_REQUEST_PREFIX: &str = "~";

/// What to do about a request that may have been carried out, if nothing is known of it (S12).
pub const RETRY_ADVICE: &str =
    "with a request id, repeat it with the same one; without, look what has become of it first";

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
        /// The authenticated caller. Nobody else can act for the session. The node has verified it before the command
        /// was queued.
        identity: Option<SmolStr>,
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
    /// Change rules, tokens or quotas.
    ChangeAccess {
        /// The authenticated caller; empty if unknown.
        by: SmolStr,
        /// What to change.
        change: AccessChange,
    },
    /// Record in the audit trail something that is done outside the table.
    AuditNote {
        /// The authenticated caller; empty if unknown.
        by: SmolStr,
        /// What is done, in one line.
        text: SmolStr,
    },
    /// Raise the version of the cell. It does nothing if the cell has that version already.
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
    /// The word used in traces.
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

    /// Estimated work of applying it, in steps of about a microsecond. What a command causes beyond that is bounded by
    /// the budgets of the entry.
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
            // A lock is freed, and somebody else gets it.
            Command::Release { .. } | Command::Cancel { .. } | Command::HandOver { .. } => 2 * LOCK_STEPS,
            Command::ForceRelease { .. } | Command::ChangeAccess { .. } => 64,
            Command::OpenSession { .. }
            | Command::CloseSession { .. }
            | Command::ExpireSession { .. }
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

    /// What its caller should do if the answer is lost and it may have been carried out (S12): not everything can be
    /// repeated.
    pub fn retry_advice(&self) -> &'static str {
        match self {
            Command::Acquire(request) if request.has_client_id() => "repeat it with the same request id",
            Command::Acquire(_) => {
                "look who holds the lock before you repeat it, or close the session, which gives everything back; with a \
                 request id it could simply be repeated"
            }
            Command::Release { .. } => "repeat it: not_held means that it has happened",
            Command::CloseSession { .. } => "repeat it: session_lost means that it has happened",
            Command::Cancel { .. } => "repeat it",
            Command::OpenSession { .. } => "open another session; this one, if it was opened, ends by itself",
            Command::PutValue { .. } | Command::DeleteValue { .. } => "read the value before you repeat it",
            Command::ForceRelease { .. } => {
                "look who holds the lock before you repeat it: by now it may be the next one"
            }
            Command::HandOver { .. } => "look who holds the lock before you repeat it",
            Command::TakeRate(_) => "the permits may be gone: repeat it only if it may take them twice",
            Command::ChangeAccess { .. } => "look at the rules, tokens and quotas before you repeat it",
            Command::AuditNote { .. } => "look at the members before you repeat it",
            // The node proposes these itself, and proposes them again.
            Command::ExpireSession { .. } | Command::Tick | Command::RaiseCellVersion { .. } => RETRY_ADVICE,
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => RETRY_ADVICE,
        }
    }

    /// Steps that it takes whatever is left of the budget, beyond those of a command for one lock.
    pub(crate) fn steps_of_further_locks(&self) -> u64 {
        match self {
            Command::Acquire(request) => {
                LOCK_STEPS * (request.locks.as_slice().len() as u64).saturating_sub(1)
            }
            _ => 0,
        }
    }

    /// Whether it frees or ends something, or is an administrator's. Such commands are accepted for as long as the
    /// log can take anything (S11).
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
    /// Whether the client chose a request id. One that a node drew is not known to it.
    fn has_client_id(&self) -> bool {
        self.request.as_ref().is_some_and(|id| !id.starts_with(NODE_REQUEST_PREFIX))
    }

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nobody else.
    #[default]
    Exclusive,
    /// Others in shared mode may hold it too.
    Shared,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

    /// The word used in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }

    /// The mode with this word.
    pub fn from_word(word: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == word)
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_acquire_with_a_client_id_is_to_be_repeated_with_it() {
        let session = SessionId(1);
        let acquire = Acquire::new(session, Locks::One("a".into()));
        let with = |id: &str| Command::Acquire(Acquire { request: Some(id.into()), ..acquire.clone() });
        assert_eq!(with("r1").retry_advice(), "repeat it with the same request id");
        let put = Command::PutValue { key: "k".into(), value: vec![1].into(), fence: None, if_version: None };
        let force = Command::ForceRelease { lock: "a".into(), reason: "stuck".into(), by: "".into() };
        let open = Command::OpenSession { session, ttl_ms: 1_000, owner: "me".into(), identity: None };
        let release = Command::Release { session, lock: "a".into(), token: Token(1), forget: false };
        for (command, next) in [
            (with("~1-1"), "look who holds the lock"),
            (Command::Acquire(acquire.clone()), "look who holds the lock"),
            (put, "read the value before you repeat it"),
            (force, "look who holds the lock"),
            (open, "open another session"),
            (release, "not_held means that it has happened"),
        ] {
            let advice = command.retry_advice();
            assert!(advice.contains(next), "{advice}");
            assert!(!advice.contains("the same request id"), "it has none: {advice}");
        }
    }
}
