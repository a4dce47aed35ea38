//! Acquiring and releasing locks.

use std::fmt;

use lockkeeper_core::{
    Acquire as AcquireCommand, Command, Grant, Locks, Mode, Policy, Refusal, RequestId as CoreRequestId,
    Sequencer, Token, Waiting,
};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use smol_str::{SmolStr, ToSmolStr};

use crate::request::{Answer, Call, Done, Request, session_id, some_text, wait};
use crate::v1;
use crate::wire::{Wire, answers};

/// A request id: text, or a whole number, which is the same as its digits as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub CoreRequestId);

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RequestId, D::Error> {
        struct Word;
        impl Visitor<'_> for Word {
            type Value = RequestId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }
            fn visit_str<E>(self, text: &str) -> Result<RequestId, E> {
                Ok(RequestId(text.into()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<RequestId, E> {
                Ok(RequestId(number.to_smolstr()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<RequestId, E> {
                Ok(RequestId(number.to_smolstr()))
            }
        }
        deserializer.deserialize_any(Word)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for RequestId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RequestId".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The client's id of the request: the same id in the same session is the same request, and a \
                            retry gets its place in the queue or its answer.",
            "type": ["string", "integer"]
        })
    }
}

/// The schema of a mode, because the core does not depend on schemars.
#[cfg(feature = "schema")]
pub(crate) fn mode_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": Mode::ALL.map(Mode::as_str) })
}

#[cfg(feature = "schema")]
pub(crate) fn optional_mode_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut words: Vec<_> = Mode::ALL.iter().map(|mode| Some(mode.as_str())).collect();
    words.push(None);
    schemars::json_schema!({ "type": ["string", "null"], "enum": words })
}

#[cfg(feature = "schema")]
fn optional_policy_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut words: Vec<_> = Policy::ALL.iter().map(|policy| Some(policy.as_str())).collect();
    words.push(None);
    schemars::json_schema!({ "type": ["string", "null"], "enum": words })
}

/// Request to acquire a lock.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Acquire {
    /// The session that will hold it.
    pub session: String,
    /// The lock.
    pub lock: String,
    /// Exclusive if absent.
    #[cfg_attr(feature = "schema", schemars(schema_with = "optional_mode_schema"))]
    #[serde(default)]
    pub mode: Option<Mode>,
    /// Permits of a counted lock.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub permits: Option<u32>,
    /// The capacity of a counted lock. The first request fixes it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub capacity: Option<u32>,
    /// How long to wait in the queue; 0 never waits.
    pub wait_ms: Option<u64>,
    /// Wait until it is granted or cancelled or the session ends; wait_ms is then ignored.
    pub wait_forever: Option<bool>,
    /// The client's id of this request.
    pub request: Option<RequestId>,
    /// How long the lock stays closed if the session expires while it holds the lock.
    pub lock_delay_ms: Option<u64>,
    /// The scope: one line of work, the unit of deadlock detection, private to the session. Its age is that of its first
    /// acquire.
    pub scope: Option<String>,
    /// What to do when another scope blocks the request; needs a scope. detect, the default, refuses the wait that closes a cycle
    /// (deadlock). wait_die: a younger scope gets died. wound_wait: an older scope takes the lock, and the younger one gets
    /// wounded.
    #[cfg_attr(feature = "schema", schemars(schema_with = "optional_policy_schema"))]
    #[serde(default)]
    pub policy: Option<Policy>,
}

/// A lock that was granted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Granted {
    /// The lock.
    pub lock: String,
    /// The fencing token: greater than that of every earlier grant of the cell.
    pub token: u64,
    /// The mode of the grant.
    #[cfg_attr(feature = "schema", schemars(schema_with = "mode_schema"))]
    pub mode: Mode,
    /// The token with its lock and mode as one text.
    pub sequencer: String,
}

impl From<Grant> for Granted {
    fn from(grant: Grant) -> Granted {
        Granted {
            lock: grant.locks.as_slice().first().map(ToString::to_string).unwrap_or_default(),
            token: grant.token.0,
            mode: grant.mode,
            sequencer: sequencer(&grant),
        }
    }
}

impl Call for Acquire {
    type Answer = Granted;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "lock": "orders/4472", "wait_ms": 5000, "request": "r-1"}"#,
        r#"{"lock": "orders/4472", "token": 42, "mode": "exclusive", "sequencer": "lk1:42:x:orders/4472"}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        let acquire = AcquireCommand {
            session: session_id(&self.session)?,
            request: self.request.map(|id| id.0),
            locks: Locks::One(self.lock.into()),
            mode: self.mode.unwrap_or_default(),
            permits: default_permits(self.mode, self.permits, self.capacity),
            capacity: self.capacity,
            wait: wait(self.wait_ms.unwrap_or(0), self.wait_forever.unwrap_or(false)),
            lock_delay_ms: self.lock_delay_ms.unwrap_or(0),
            scope: self.scope.and_then(some_text),
            policy: self.policy.unwrap_or_default(),
            value: None,
        };
        Ok(Command::Acquire(acquire).into())
    }
}

impl TryFrom<v1::AcquireRequest> for Request {
    type Error = Refusal;

    #[inline]
    fn try_from(request: v1::AcquireRequest) -> Result<Request, Refusal> {
        let mode = mode(request.mode)?;
        let acquire = AcquireCommand {
            session: session_id(&request.session)?,
            request: some_text(request.request),
            locks: Locks::One(request.lock.into()),
            mode: mode.unwrap_or_default(),
            permits: default_permits(mode, request.permits, request.capacity),
            capacity: request.capacity,
            wait: wait(request.wait_ms, request.wait_forever),
            lock_delay_ms: request.lock_delay_ms,
            scope: some_text(request.scope),
            policy: policy(&request.policy)?,
            value: some_text(request.value),
        };
        Ok(Command::Acquire(acquire).into())
    }
}

/// Request to acquire several locks, all or nothing.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AcquireAll {
    /// The session that will hold them.
    pub session: String,
    /// The locks, in any order.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub locks: Vec<String>,
    /// Exclusive if absent.
    #[cfg_attr(feature = "schema", schemars(schema_with = "optional_mode_schema"))]
    #[serde(default)]
    pub mode: Option<Mode>,
    /// How long to wait in the queue; 0 never waits.
    pub wait_ms: Option<u64>,
    /// Wait until they are granted or cancelled or the session ends; wait_ms is then ignored.
    pub wait_forever: Option<bool>,
    /// The client's id of this request.
    pub request: Option<RequestId>,
    /// How long the locks stay closed if the session expires while it holds them.
    pub lock_delay_ms: Option<u64>,
    /// The scope, as with acquire.
    pub scope: Option<String>,
    /// What to do when another scope blocks the request, as with acquire.
    #[cfg_attr(feature = "schema", schemars(schema_with = "optional_policy_schema"))]
    #[serde(default)]
    pub policy: Option<Policy>,
}

/// Several locks that were granted together.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GrantedAll {
    /// The locks, in order of name.
    pub locks: Vec<String>,
    /// One fencing token for all of them.
    pub token: u64,
    /// The mode of the grant.
    #[cfg_attr(feature = "schema", schemars(schema_with = "mode_schema"))]
    pub mode: Mode,
    /// The sequencer of each lock, in the same order.
    pub sequencers: Vec<String>,
}

impl From<Grant> for GrantedAll {
    fn from(grant: Grant) -> GrantedAll {
        let (token, mode) = (grant.token, grant.mode);
        let sequencer = |lock: &SmolStr| Sequencer { lock: lock.clone(), token, mode }.to_string();
        GrantedAll {
            locks: grant.locks.as_slice().iter().map(ToString::to_string).collect(),
            token: token.0,
            mode,
            sequencers: grant.locks.as_slice().iter().map(sequencer).collect(),
        }
    }
}

impl Call for AcquireAll {
    type Answer = GrantedAll;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "locks": ["a", "b"], "wait_ms": 5000}"#,
        r#"{"locks": ["a", "b"], "token": 43, "mode": "exclusive", "sequencers": ["lk1:43:x:a", "lk1:43:x:b"]}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        let locks = Locks::many(self.locks.into_iter().map(SmolStr::from));
        let acquire = AcquireCommand {
            request: self.request.map(|id| id.0),
            mode: self.mode.unwrap_or_default(),
            wait: wait(self.wait_ms.unwrap_or(0), self.wait_forever.unwrap_or(false)),
            lock_delay_ms: self.lock_delay_ms.unwrap_or(0),
            scope: self.scope.and_then(some_text),
            policy: self.policy.unwrap_or_default(),
            ..AcquireCommand::new(session_id(&self.session)?, locks)
        };
        Ok(Command::Acquire(acquire).into())
    }
}

impl TryFrom<v1::AcquireAllRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::AcquireAllRequest) -> Result<Request, Refusal> {
        let locks = Locks::many(request.locks.into_iter().map(SmolStr::from));
        let acquire = AcquireCommand {
            request: some_text(request.request),
            wait: wait(request.wait_ms, request.wait_forever),
            lock_delay_ms: request.lock_delay_ms,
            scope: some_text(request.scope),
            policy: policy(&request.policy)?,
            mode: mode(request.mode)?.unwrap_or_default(),
            ..AcquireCommand::new(session_id(&request.session)?, locks)
        };
        Ok(Command::Acquire(acquire).into())
    }
}

impl From<&Grant> for v1::Grant {
    fn from(grant: &Grant) -> v1::Grant {
        v1::Grant {
            locks: grant.locks.as_slice().iter().map(ToString::to_string).collect(),
            token: grant.token.0,
            mode: grant.mode.into_wire(),
            sequencer: sequencer(grant),
        }
    }
}

/// A grant without names, for a caller that knows them.
pub(crate) fn brief_grant(grant: &Grant) -> v1::Grant {
    v1::Grant { token: grant.token.0, mode: grant.mode.into_wire(), ..Default::default() }
}

/// Empty if the grant is for several locks.
fn sequencer(grant: &Grant) -> String {
    match &grant.locks {
        Locks::One(lock) => {
            Sequencer { lock: lock.clone(), token: grant.token, mode: grant.mode }.to_string()
        }
        Locks::Many(_) => String::new(),
    }
}

/// A capacity without mode and permits means one permit.
fn default_permits(mode: Option<Mode>, permits: Option<u32>, capacity: Option<u32>) -> Option<u32> {
    match (mode, permits, capacity) {
        (None, None, Some(capacity)) if capacity > 1 => Some(1),
        (_, permits, _) => permits,
    }
}

fn policy(word: &str) -> Result<Policy, Refusal> {
    match word {
        "" => Ok(Policy::Detect),
        word => word.parse().map_err(|_| {
            Refusal::invalid(format!("\"{word}\" is not a policy: use detect, wait_die or wound_wait"))
        }),
    }
}

fn mode(number: Option<i32>) -> Result<Option<Mode>, Refusal> {
    let Some(number) = number else { return Ok(None) };
    match v1::Mode::try_from(number) {
        Ok(_) => Ok(Some(Mode::from_wire(number))),
        Err(_) => Err(Refusal::invalid("mode is neither EXCLUSIVE nor SHARED")),
    }
}

/// Request to release a lock.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Release {
    /// The session that holds it.
    pub session: String,
    /// The lock.
    pub lock: String,
    /// Its token.
    pub token: u64,
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Released {
    /// Always true.
    pub released: bool,
}

impl Call for Release {
    type Answer = Released;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "lock": "orders/4472", "token": 42}"#,
        r#"{"released": true}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        let session = session_id(&self.session)?;
        let (lock, token) = (self.lock.into(), Token(self.token));
        // Over HTTP a retry of the acquire may still be in flight: its answer is kept, within the session's bound.
        Ok(Command::Release { session, lock, token, forget: false }.into())
    }
}

impl TryFrom<v1::ReleaseRequest> for Request {
    type Error = Refusal;

    #[inline]
    fn try_from(request: v1::ReleaseRequest) -> Result<Request, Refusal> {
        let session = session_id(&request.session)?;
        let (lock, token) = (request.lock.into(), Token(request.token));
        Ok(Command::Release { session, lock, token, forget: request.forget }.into())
    }
}

/// Request to cancel an acquire: leaves the queue, or releases what was granted.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cancel {
    /// The session.
    pub session: String,
    /// The request id of the acquire.
    pub request: RequestId,
}

fn cancel(session: &str, request: SmolStr) -> Result<Request, Refusal> {
    if request.is_empty() {
        return Err(Refusal::invalid("the request id is empty: use that of the acquire"));
    }
    Ok(Command::Cancel { session: session_id(session)?, what: Waiting::Request(request) }.into())
}

impl Call for Cancel {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "request": "r-1"}"#, "{}"));

    fn into_request(self) -> Result<Request, Refusal> {
        cancel(&self.session, self.request.0)
    }
}

impl TryFrom<v1::CancelRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::CancelRequest) -> Result<Request, Refusal> {
        cancel(&request.session, request.request.into())
    }
}

/// Request to free a lock, whoever holds it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForceRelease {
    /// The lock.
    pub lock: String,
    /// The reason, which is recorded in the audit trail.
    pub reason: String,
}

/// The answer to a force-release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Forced {
    /// Whether the lock was held.
    pub released: bool,
    /// The lock's last token, now above that of every previous holder.
    pub last_token: u64,
}

fn force_release(lock: String, reason: String) -> Request {
    Command::ForceRelease { lock: lock.into(), reason: reason.into(), by: SmolStr::default() }.into()
}

impl Call for ForceRelease {
    type Answer = Forced;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"lock": "orders/4472", "reason": "host-3 is gone"}"#,
        r#"{"released": true, "last_token": 44}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(force_release(self.lock, self.reason))
    }
}

impl From<v1::ForceReleaseRequest> for Request {
    fn from(request: v1::ForceReleaseRequest) -> Request {
        force_release(request.lock, request.reason)
    }
}

answers! {
    Answer::Done => Released as Released { released: true };
    Answer::Granted(grant) => Granted as grant.into();
    Answer::Granted(grant) => GrantedAll as grant.into();
    Answer::Forced { released, last_token } => Forced as Forced { released: released > 0, last_token };
    Answer::Done => v1::ReleaseResponse as Self {};
    Answer::Done => v1::CancelResponse as Self {};
    Answer::Granted(grant) => v1::Grant as (&grant).into();
    Answer::Forced { released, last_token } => v1::ForceReleaseResponse as Self { released, last_token };
}
