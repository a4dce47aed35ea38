//! Views of locks.

use std::time::Duration;

use lockkeeper_core::history::ShortSession;
use lockkeeper_core::{HolderView, LockView, Mode, Refusal, WaiterView};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Limit, Request, lock_name};
use crate::v1;
use crate::wire::{answers, mirror};

/// A lock with its holders and waiters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Lock"))]
pub struct LockState {
    /// Its name.
    pub lock: String,
    /// The number of permits; 1 for an uncounted lock.
    pub capacity: u32,
    /// The last token granted for it.
    pub last_token: u64,
    /// The holders.
    pub holders: Vec<Holder>,
    /// The first waiters, in order; `waiting` counts all.
    pub queue: Vec<Waiter>,
    /// The number of waiters.
    pub waiting: u32,
    /// The remaining lock-delay; 0 if none.
    #[serde(rename = "closed_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub closed: Duration,
}

/// A holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Holder {
    /// The first eight digits of its session's id. The whole id is a secret, because it gives control of the session.
    pub session: String,
    /// Its token.
    pub token: u64,
    /// Exclusive or shared.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::acquire::mode_schema"))]
    pub mode: Mode,
    /// The number of its permits.
    pub permits: u32,
    /// The owner of its session.
    pub owner: String,
    /// How long it has held the lock.
    #[serde(rename = "held_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub held: Duration,
    /// Its scope; absent if none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// In an election: the value of the leader.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// A waiter for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Waiter {
    /// The first eight digits of its session's id.
    pub session: String,
    /// Its place in the queue; 1 is next.
    pub position: u32,
    /// Exclusive or shared.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::acquire::mode_schema"))]
    pub mode: Mode,
    /// The owner of its session.
    pub owner: String,
    /// How long it has waited.
    #[serde(rename = "waited_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub waited: Duration,
    /// Its scope; absent if none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// In an election: the value of the candidate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// A page of locks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Locks"))]
pub struct LockPage {
    /// The locks, sorted by name.
    pub locks: Vec<LockState>,
    /// Whether there are more locks after the last name.
    pub more: bool,
}

mirror!(LockState = v1::LockState { lock, capacity, last_token, holders, queue, waiting; closed = closed_ms });
mirror!(Holder = v1::Holder { session, token, mode, permits, owner, scope, value; held = held_ms });
mirror!(Waiter = v1::Waiter { session, position, mode, owner, scope, value; waited = waited_ms });
mirror!(LockPage = v1::ListLocksResponse { locks, more });

impl From<LockView> for LockState {
    fn from(view: LockView) -> LockState {
        LockState {
            lock: view.name.into(),
            capacity: view.capacity,
            last_token: view.last_token.0,
            holders: view.holders.into_iter().map(Holder::from).collect(),
            queue: view.queue.into_iter().map(Waiter::from).collect(),
            waiting: view.waiting,
            closed: Duration::from_millis(view.closed_ms),
        }
    }
}

impl From<HolderView> for Holder {
    fn from(view: HolderView) -> Holder {
        Holder {
            session: ShortSession::from(view.session).to_string(),
            token: view.token.0,
            mode: view.mode,
            permits: view.permits,
            owner: view.owner.into(),
            held: Duration::from_millis(view.held_ms),
            scope: view.scope.into(),
            value: view.value.into(),
        }
    }
}

impl From<WaiterView> for Waiter {
    fn from(view: WaiterView) -> Waiter {
        Waiter {
            session: ShortSession::from(view.session).to_string(),
            position: view.position,
            mode: view.mode,
            owner: view.owner.into(),
            waited: Duration::from_millis(view.waited_ms),
            scope: view.scope.into(),
            value: view.value.into(),
        }
    }
}

/// Request for the holders and waiters of a lock.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetLock {
    /// The lock. In a query, + means a space: write %2B for a plus.
    pub name: String,
}

impl Call for GetLock {
    type Answer = LockState;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Lock(lock_name(self.name)?))
    }
}

impl TryFrom<v1::GetLockRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::GetLockRequest) -> Result<Request, Refusal> {
        Ok(Request::Lock(lock_name(request.lock)?))
    }
}

/// Request for a page of the locks in use.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListLocks {
    /// Only names with this prefix.
    pub prefix: String,
    /// The last name of the previous page.
    pub after: String,
    /// Maximum number of locks in the page: 100 if absent or 0, at most 1000.
    pub limit: Limit,
}

impl Call for ListLocks {
    type Answer = LockPage;

    fn into_request(self) -> Result<Request, Refusal> {
        let limit = self.limit.number()?;
        Ok(Request::Locks { prefix: self.prefix, after: self.after, limit })
    }
}

impl From<v1::ListLocksRequest> for Request {
    fn from(request: v1::ListLocksRequest) -> Request {
        let v1::ListLocksRequest { prefix, limit, after } = request;
        Request::Locks { prefix, after, limit: limit as usize }
    }
}

answers! {
    Answer::Lock(lock) => LockState as lock;
    Answer::Locks(locks) => LockPage as locks;
    Answer::Lock(lock) => v1::LockState as lock.into();
    Answer::Locks(locks) => v1::ListLocksResponse as locks.into();
}
