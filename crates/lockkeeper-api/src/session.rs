//! Opening, renewing, closing and listing sessions.

use std::time::Duration;

use lockkeeper_core::history::ShortSession;
use lockkeeper_core::{Command, Refusal, SessionId};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Done, Limit, Request, session_id};
use crate::v1;
use crate::wire::{answers, mirror};

/// Request to open a session.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenSession {
    /// Its time to live without a renewal.
    pub ttl_ms: u64,
    /// Description of the client for people: host, process, label.
    pub owner: Option<String>,
}

/// The answer to opening a session.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionOpened {
    /// Its id: a secret, because it gives control of the session.
    pub session: String,
    /// Its time to live without a renewal.
    pub ttl_ms: u64,
}

mirror!(SessionOpened = v1::OpenSessionResponse { session, ttl_ms });

impl Call for OpenSession {
    type Answer = SessionOpened;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"ttl_ms": 10000, "owner": "billing@host-3"}"#,
        r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081", "ttl_ms": 10000}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::OpenSession { ttl_ms: self.ttl_ms, owner: self.owner.unwrap_or_default().into() })
    }
}

impl From<v1::OpenSessionRequest> for Request {
    fn from(request: v1::OpenSessionRequest) -> Request {
        Request::OpenSession { ttl_ms: request.ttl_ms, owner: request.owner.into() }
    }
}

/// Request to renew a session.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeepAlive {
    /// The session.
    pub session: String,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptAlive {
    /// Its time to live from now on.
    pub ttl_ms: u64,
}

mirror!(KeptAlive = v1::KeepAliveResponse { ttl_ms });

impl Call for KeepAlive {
    type Answer = KeptAlive;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081"}"#, r#"{"ttl_ms": 10000}"#));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::KeepAlive(session_id(&self.session)?))
    }
}

impl TryFrom<v1::KeepAliveRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::KeepAliveRequest) -> Result<Request, Refusal> {
        Ok(Request::KeepAlive(session_id(&request.session)?))
    }
}

/// Request to close a session.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CloseSession {
    /// The session.
    pub session: String,
}

impl Call for CloseSession {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"session": "5f0c6a3b9d1e4c7f8a2b3c4d5e6f7081"}"#, "{}"));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Command::CloseSession { session: session_id(&self.session)? }.into())
    }
}

impl TryFrom<v1::CloseSessionRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::CloseSessionRequest) -> Result<Request, Refusal> {
        Ok(Command::CloseSession { session: session_id(&request.session)? }.into())
    }
}

/// Request for a page of sessions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListSessions {
    /// Only sessions whose owner contains this.
    pub owner: String,
    /// The `next` of the previous page.
    pub after: String,
    /// Maximum number of sessions: 100 if absent or 0, at most 1000.
    pub limit: Limit,
}

impl Call for ListSessions {
    type Answer = SessionPage;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Sessions(SessionFilter::new(&self.after, self.owner, self.limit.number()?)?))
    }
}

/// A filter of sessions.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Only sessions after this one, by the first digits of its id.
    pub after: Option<ShortSession>,
    /// Only sessions whose owner contains this.
    pub owner: String,
    /// Maximum number of sessions; 0 means 100.
    pub limit: usize,
}

impl SessionFilter {
    /// Creates a filter for the page after `after`.
    pub fn new(after: &str, owner: String, limit: usize) -> Result<SessionFilter, Refusal> {
        if after.is_empty() {
            return Ok(SessionFilter { after: None, owner, limit });
        }
        let digits = after.get(..8).unwrap_or(after);
        let short = u32::from_str_radix(digits, 16).map_err(|_| {
            Refusal::invalid(format!(
                "after is \"{after}\", not a session of the previous page: use its first eight digits"
            ))
        })?;
        Ok(SessionFilter { after: Some(ShortSession(short)), owner, limit })
    }
}

/// A page of sessions, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionState>,
    /// Whether there may be more.
    pub more: bool,
    /// The `after` of the next page, if there are more.
    pub next: Option<String>,
    /// The number of sessions in the cell.
    pub total: u64,
}

/// The view of a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionState {
    /// The first eight digits of its id: enough to tell sessions apart, not enough to use one.
    pub session: String,
    /// Description of the client.
    pub owner: String,
    /// Its time to live without a renewal.
    #[serde(rename = "ttl_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub ttl: Duration,
    /// Its remaining time to live; null on a follower, which does not know it.
    #[serde(rename = "remaining_ms", serialize_with = "crate::ms::option::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub remaining: Option<Duration>,
    /// How long ago it was opened, in cell time.
    #[serde(rename = "age_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub age: Duration,
    /// The number of its grants.
    pub grants: u32,
    /// The number of its waiting requests.
    pub waits: u32,
}

impl SessionOpened {
    /// The session with this id.
    pub fn new(session: SessionId, ttl_ms: u64) -> SessionOpened {
        SessionOpened { session: session.to_string(), ttl_ms }
    }
}

answers! {
    Answer::SessionOpened(opened) => SessionOpened as opened;
    Answer::KeptAlive(kept) => KeptAlive as kept;
    Answer::Sessions(sessions) => SessionPage as sessions;
    Answer::Done => v1::CloseSessionResponse as Self {};
    Answer::SessionOpened(opened) => v1::OpenSessionResponse as opened.into();
    Answer::KeptAlive(kept) => v1::KeepAliveResponse as kept.into();
}
