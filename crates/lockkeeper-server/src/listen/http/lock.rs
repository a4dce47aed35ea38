//! Take locks, give them back, and see who holds them and who waits.

use std::fmt;

use axum::Json;
use lockkeeper_core::history::ShortSession;
use lockkeeper_core::{
    Acquire, Command, Grant, HolderView, LockView, Locks, Mode, Policy, Reply, Sequencer, Token, Wait,
    WaiterView, Waiting,
};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use smol_str::{SmolStr, ToSmolStr};

use super::body::Body;
use super::error::Error;
use super::on_behalf::OnBehalf;
use super::query::Query;
use super::with_grant::WithGrant;
use crate::failure::Failure;
use crate::wire;

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum ModeWord {
    Exclusive,
    Shared,
}

impl From<ModeWord> for Mode {
    fn from(word: ModeWord) -> Mode {
        match word {
            ModeWord::Exclusive => Mode::Exclusive,
            ModeWord::Shared => Mode::Shared,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyWord {
    Detect,
    WaitDie,
    WoundWait,
}

impl From<PolicyWord> for Policy {
    fn from(word: PolicyWord) -> Policy {
        match word {
            PolicyWord::Detect => Policy::Detect,
            PolicyWord::WaitDie => Policy::WaitDie,
            PolicyWord::WoundWait => Policy::WoundWait,
        }
    }
}

/// An empty scope is none.
fn scope(name: Option<String>) -> Option<SmolStr> {
    name.filter(|name| !name.is_empty()).map(SmolStr::from)
}

/// A request id: text, or a whole number that stands for its digits.
pub(super) struct RequestWord(pub(super) SmolStr);

impl<'de> Deserialize<'de> for RequestWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RequestWord, D::Error> {
        struct Word;
        impl Visitor<'_> for Word {
            type Value = RequestWord;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }
            fn visit_str<E>(self, text: &str) -> Result<RequestWord, E> {
                Ok(RequestWord(text.into()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<RequestWord, E> {
                Ok(RequestWord(number.to_smolstr()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<RequestWord, E> {
                Ok(RequestWord(number.to_smolstr()))
            }
        }
        deserializer.deserialize_any(Word)
    }
}

pub(super) fn wait(wait_ms: Option<u64>, forever: Option<bool>) -> Wait {
    match (forever, wait_ms) {
        (Some(true), _) => Wait::Forever,
        (_, None | Some(0)) => Wait::No,
        (_, Some(ms)) => Wait::ForMs(ms),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireOne {
    session: String,
    lock: String,
    mode: Option<ModeWord>,
    permits: Option<u32>,
    capacity: Option<u32>,
    wait_ms: Option<u64>,
    wait_forever: Option<bool>,
    request: Option<RequestWord>,
    lock_delay_ms: Option<u64>,
    scope: Option<String>,
    policy: Option<PolicyWord>,
}

#[derive(Serialize)]
pub(super) struct Granted {
    lock: String,
    token: u64,
    mode: &'static str,
    sequencer: String,
}

/// If the caller goes away while it waits, this future is dropped, and with it its place in the queue
/// (see [`crate::calls::Calls::acquire`]).
pub(super) async fn acquire(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<AcquireOne>,
) -> Result<WithGrant<Granted>, Error> {
    let mode = asked.mode.map(Mode::from);
    let lock = asked.lock;
    let grant = calls
        .acquire_for_answer(Acquire {
            session: wire::session(&asked.session)?,
            request: asked.request.map(|RequestWord(id)| id),
            locks: Locks::One(SmolStr::from(&lock)),
            mode: mode.unwrap_or_default(),
            permits: wire::permits_meant(mode, asked.permits, asked.capacity),
            capacity: asked.capacity,
            wait: wait(asked.wait_ms, asked.wait_forever),
            lock_delay_ms: asked.lock_delay_ms.unwrap_or(0),
            scope: scope(asked.scope),
            policy: asked.policy.map(Policy::from).unwrap_or_default(),
            value: None,
        })
        .await?;
    let sequencer = wire::sequencer(&grant);
    let granted = Granted { lock, token: grant.token.0, mode: grant.mode.as_str(), sequencer };
    Ok(WithGrant::new(granted, grant))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireAll {
    session: String,
    locks: Vec<String>,
    mode: Option<ModeWord>,
    wait_ms: Option<u64>,
    wait_forever: Option<bool>,
    request: Option<RequestWord>,
    lock_delay_ms: Option<u64>,
    scope: Option<String>,
    policy: Option<PolicyWord>,
}

/// The locks in order of name, and the sequencers in the same order.
#[derive(Serialize)]
pub(super) struct GrantedAll {
    locks: Vec<String>,
    token: u64,
    mode: &'static str,
    sequencers: Vec<String>,
}

impl From<&Grant> for GrantedAll {
    fn from(grant: &Grant) -> GrantedAll {
        let (token, mode) = (grant.token, grant.mode);
        let sequencer = |lock: &SmolStr| Sequencer { lock: lock.clone(), token, mode }.to_string();
        GrantedAll {
            locks: grant.locks.as_slice().iter().map(ToString::to_string).collect(),
            token: token.0,
            mode: mode.as_str(),
            sequencers: grant.locks.as_slice().iter().map(sequencer).collect(),
        }
    }
}

pub(super) async fn acquire_all(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<AcquireAll>,
) -> Result<WithGrant<GrantedAll>, Error> {
    let session = wire::session(&asked.session)?;
    let grant = calls
        .acquire_for_answer(Acquire {
            request: asked.request.map(|RequestWord(id)| id),
            mode: asked.mode.map(Mode::from).unwrap_or_default(),
            wait: wait(asked.wait_ms, asked.wait_forever),
            lock_delay_ms: asked.lock_delay_ms.unwrap_or(0),
            scope: scope(asked.scope),
            policy: asked.policy.map(Policy::from).unwrap_or_default(),
            ..Acquire::new(session, Locks::many(asked.locks.into_iter().map(SmolStr::from)))
        })
        .await?;
    Ok(WithGrant::new(GrantedAll::from(&*grant), grant))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    session: String,
    lock: String,
    token: u64,
}

#[derive(Serialize)]
pub(super) struct Released {
    released: bool,
}

pub(super) async fn release(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Release>,
) -> Result<Json<Released>, Error> {
    let session = wire::session(&asked.session)?;
    let (lock, token) = (asked.lock.into(), Token(asked.token));
    // Over HTTP a repeated acquire may still be on its way: its answer is kept, within the session's bound.
    calls.command(Command::Release { session, lock, token, forget: false }).await?;
    Ok(Json(Released { released: true }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    session: String,
    request: RequestWord,
}

#[derive(Serialize)]
pub(super) struct Cancelled {}

pub(super) async fn cancel(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<Cancel>,
) -> Result<Json<Cancelled>, Error> {
    let RequestWord(id) = asked.request;
    if id.is_empty() {
        return Err(Error::invalid("the request id is empty: name the one that the acquire had"));
    }
    let session = wire::session(&asked.session)?;
    calls.command(Command::Cancel { session, what: Waiting::Request(id) }).await?;
    Ok(Json(Cancelled {}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForceRelease {
    lock: String,
    reason: String,
}

#[derive(Serialize)]
pub(super) struct Forced {
    /// Whether anybody held it.
    released: bool,
    last_token: u64,
}

pub(super) async fn force_release(
    OnBehalf(calls): OnBehalf,
    Body(asked): Body<ForceRelease>,
) -> Result<Json<Forced>, Error> {
    let command =
        Command::ForceRelease { lock: asked.lock.into(), reason: asked.reason.into(), by: "".into() };
    match calls.command(command).await? {
        Reply::Forced { released, last_token } => {
            Ok(Json(Forced { released: released > 0, last_token: last_token.0 }))
        }
        other => {
            Err(Failure::unknown(format!("the table gave an answer that does not fit ({other:?})")).into())
        }
    }
}

/// A lock as people see it.
#[derive(Serialize)]
pub(super) struct Lock {
    lock: String,
    capacity: u32,
    last_token: u64,
    holders: Vec<Holder>,
    queue: Vec<Waiter>,
    /// All who wait; the queue shows the first of them.
    waiting: u32,
    closed_ms: u64,
}

#[derive(Serialize)]
struct Holder {
    /// The first digits: whoever knows a whole id can act in its name.
    session: String,
    token: u64,
    mode: &'static str,
    permits: u32,
    owner: String,
    held_ms: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    scope: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    value: String,
}

#[derive(Serialize)]
struct Waiter {
    /// The first digits.
    session: String,
    position: u32,
    mode: &'static str,
    owner: String,
    waited_ms: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    scope: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    value: String,
}

impl From<LockView> for Lock {
    fn from(view: LockView) -> Lock {
        Lock {
            lock: view.name.to_string(),
            capacity: view.capacity,
            last_token: view.last_token.0,
            holders: view.holders.into_iter().map(Holder::from).collect(),
            queue: view.queue.into_iter().map(Waiter::from).collect(),
            waiting: view.waiting,
            closed_ms: view.closed_ms,
        }
    }
}

impl From<HolderView> for Holder {
    fn from(view: HolderView) -> Holder {
        Holder {
            session: ShortSession::from(view.session).to_string(),
            token: view.token.0,
            mode: view.mode.as_str(),
            permits: view.permits,
            owner: view.owner.to_string(),
            held_ms: view.held_ms,
            scope: view.scope.to_string(),
            value: view.value.to_string(),
        }
    }
}

impl From<WaiterView> for Waiter {
    fn from(view: WaiterView) -> Waiter {
        Waiter {
            session: ShortSession::from(view.session).to_string(),
            position: view.position,
            mode: view.mode.as_str(),
            owner: view.owner.to_string(),
            waited_ms: view.waited_ms,
            scope: view.scope.to_string(),
            value: view.value.to_string(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ByName {
    name: String,
}

pub(super) async fn one(OnBehalf(calls): OnBehalf, Query(asked): Query<ByName>) -> Result<Json<Lock>, Error> {
    Ok(Json(calls.lock(&asked.name)?.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after: String,
    /// Empty means the same as absent, as with the others.
    #[serde(default)]
    limit: String,
}

#[derive(Serialize)]
pub(super) struct Locked {
    locks: Vec<Lock>,
    more: bool,
}

pub(super) async fn page(
    OnBehalf(calls): OnBehalf,
    Query(asked): Query<Page>,
) -> Result<Json<Locked>, Error> {
    let limit = match asked.limit.as_str() {
        "" => 0,
        digits => digits.parse().map_err(|_| {
            Error::invalid(format!("the query does not fit: limit is \"{digits}\", not a whole number"))
        })?,
    };
    let (locks, more) = calls.locks(&asked.prefix, &asked.after, limit)?;
    Ok(Json(Locked { locks: locks.into_iter().map(Lock::from).collect(), more }))
}
