//! Access control: rules, access tokens and quotas.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::{Access, AccessChange, CellTime, Quota as NamespaceQuota, Refusal, Right, Rights};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Done, Request};
use crate::v1;
use crate::wire::{answers, mirror};

/// The default identity of the first administrator.
const FIRST_ADMINISTRATOR: &str = "admin";

/// All rules, access tokens and quotas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Access"))]
pub struct AccessState {
    /// The rules.
    pub rules: Vec<AccessRule>,
    /// The access tokens, without their secrets.
    pub tokens: Vec<AccessTokenInfo>,
    /// The quotas and the usage.
    pub quotas: Vec<Quota>,
    /// Whether access control is on: then only what a rule grants is allowed.
    pub enabled: bool,
}

/// The rights of an identity on all names with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessRule {
    /// The identity; `*` for every authenticated caller.
    pub identity: String,
    /// The name prefix; empty for all names. Elections are named without `election/`.
    pub prefix: String,
    /// `read`, `acquire`, `force_release`, `admin`.
    pub rights: Vec<String>,
}

/// An access token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AccessToken"))]
pub struct AccessTokenInfo {
    /// Its public part.
    pub id: String,
    /// The identity that it authenticates.
    pub identity: String,
    /// How long ago it was created, in cell time.
    #[serde(rename = "age_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub age: Duration,
}

/// The quota and usage of a namespace, of an identity or of the whole cell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quota {
    /// The namespace; `*` for each without a quota of its own.
    pub namespace: Option<String>,
    /// The identity; `*` for each without a quota of its own.
    pub identity: Option<String>,
    /// Maximum number of locks.
    pub locks: Option<u64>,
    /// Maximum number of waiting requests.
    pub waiters: Option<u64>,
    /// Maximum number of values.
    pub values: Option<u64>,
    /// Maximum number of requests per second.
    pub requests_per_s: Option<u32>,
    /// Maximum number of sessions of the identity.
    pub sessions: Option<u32>,
    /// Maximum number of logical bytes of state of the whole cell.
    pub state_bytes: Option<u64>,
    /// Locks in use.
    pub locks_used: u64,
    /// Waiting requests.
    pub waiters_used: u64,
    /// Values in use.
    pub values_used: u64,
    /// Open sessions.
    pub sessions_used: u32,
    /// Logical bytes in use.
    pub state_bytes_used: u64,
}

/// A new access token.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "NewAccessToken"))]
pub struct NewToken {
    /// Its public part.
    pub id: String,
    /// The identity that it authenticates.
    pub identity: String,
    /// The whole token. It cannot be shown again.
    pub token: String,
}

/// Does not print the token: values are logged.
impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewToken { id, identity, token: _ } = self;
        f.debug_struct("NewToken").field("id", id).field("identity", identity).finish_non_exhaustive()
    }
}

mirror!(AccessState = v1::AccessState { rules, tokens, quotas, enabled });
mirror!(AccessRule = v1::AccessRule { identity, prefix, rights });
mirror!(AccessTokenInfo = v1::AccessTokenInfo { id, identity; age = age_ms });
mirror!(
    Quota = v1::Quota {
        namespace,
        identity,
        locks,
        waiters,
        values,
        requests_per_s,
        sessions,
        state_bytes,
        locks_used,
        waiters_used,
        values_used,
        sessions_used,
        state_bytes_used
    }
);
mirror!(NewToken = v1::NewAccessToken { id, identity, token });

impl AccessState {
    /// The access state of the table. `strict`: access control is on even if it was not enabled.
    pub fn new(access: &Access, now: CellTime, state_bytes: u64, state_bytes_max: u64, strict: bool) -> Self {
        let rules = access.rules().map(|(identity, prefix, rights)| AccessRule {
            identity: identity.to_string(),
            prefix: prefix.to_string(),
            rights: rights.iter().map(|right| right.as_str().to_owned()).collect(),
        });
        let tokens = access.tokens().map(|(id, token)| AccessTokenInfo {
            id: id.to_string(),
            identity: token.identity.to_string(),
            age: Duration::from_millis(now.ms_since(token.made)),
        });
        let namespaces = access.quotas().map(|(namespace, quota)| {
            let used = access.usage_of(namespace);
            Quota {
                namespace: Some(namespace.to_string()),
                locks: quota.locks,
                waiters: quota.waiters,
                values: quota.values,
                requests_per_s: quota.requests_per_s,
                locks_used: used.locks,
                waiters_used: used.waiters,
                values_used: used.values,
                ..Quota::default()
            }
        });
        let identities = access.session_quotas().map(|(identity, sessions)| Quota {
            identity: Some(identity.to_string()),
            sessions: Some(sessions),
            sessions_used: access.sessions_of(identity),
            ..Quota::default()
        });
        let cell =
            Quota { state_bytes: Some(state_bytes_max), state_bytes_used: state_bytes, ..Quota::default() };
        AccessState {
            rules: rules.collect(),
            tokens: tokens.collect(),
            quotas: [cell].into_iter().chain(namespaces).chain(identities).collect(),
            enabled: strict || access.is_enabled(),
        }
    }
}

/// Request for all rules, access tokens and quotas.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetAccess {}

impl Call for GetAccess {
    type Answer = AccessState;

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::Access)
    }
}

impl From<v1::GetAccessRequest> for Request {
    fn from(_: v1::GetAccessRequest) -> Request {
        Request::Access
    }
}

/// Request to turn access control on.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnableAccess {
    /// The identity of the first administrator; `admin` if absent.
    pub identity: Option<String>,
}

impl Call for EnableAccess {
    type Answer = NewToken;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"identity": "ci"}"#,
        r#"{"id": "9f86d081884c", "identity": "ci", "token": "lk_9f86d081884c_7d6f..."}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        let identity = self.identity.unwrap_or_else(|| FIRST_ADMINISTRATOR.to_owned());
        Ok(Request::EnableAccess { identity })
    }
}

impl From<v1::EnableAccessRequest> for Request {
    fn from(request: v1::EnableAccessRequest) -> Request {
        Request::EnableAccess { identity: request.identity }
    }
}

impl Call for AccessRule {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"identity": "ci", "prefix": "builds/", "rights": ["acquire"]}"#, "{}"));

    fn into_request(self) -> Result<Request, Refusal> {
        let mut rights = Vec::with_capacity(self.rights.len());
        for word in &self.rights {
            rights.push(word.parse::<Right>().map_err(|_| {
                Refusal::invalid(format!(
                    "\"{word}\" is not a right: use read, acquire, force_release or admin"
                ))
            })?);
        }
        let (identity, prefix) = (self.identity.into(), self.prefix.into());
        Ok(Request::ChangeAccess(AccessChange::Grant { identity, prefix, rights: Rights::of(rights) }))
    }
}

impl TryFrom<v1::GrantAccessRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::GrantAccessRequest) -> Result<Request, Refusal> {
        let v1::GrantAccessRequest { identity, prefix, rights } = request;
        AccessRule { identity, prefix, rights }.into_request()
    }
}

/// Request to remove a rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RevokeAccess {
    /// The identity of the rule.
    pub identity: String,
    /// The prefix of the rule.
    pub prefix: String,
}

impl Call for RevokeAccess {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"identity": "ci", "prefix": "builds/"}"#, "{}"));

    fn into_request(self) -> Result<Request, Refusal> {
        let (identity, prefix) = (self.identity.into(), self.prefix.into());
        Ok(Request::ChangeAccess(AccessChange::Revoke { identity, prefix }))
    }
}

impl TryFrom<v1::RevokeAccessRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::RevokeAccessRequest) -> Result<Request, Refusal> {
        RevokeAccess { identity: request.identity, prefix: request.prefix }.into_request()
    }
}

/// Request to create an access token.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateToken {
    /// The identity that it authenticates.
    pub identity: String,
}

impl Call for CreateToken {
    type Answer = NewToken;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"identity": "ci"}"#,
        r#"{"id": "9f86d081884c", "identity": "ci", "token": "lk_9f86d081884c_7d6f..."}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::CreateToken { identity: self.identity })
    }
}

impl From<v1::CreateAccessTokenRequest> for Request {
    fn from(request: v1::CreateAccessTokenRequest) -> Request {
        Request::CreateToken { identity: request.identity }
    }
}

/// Request to revoke an access token at once.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RevokeToken {
    /// Its public part.
    pub id: String,
}

impl Call for RevokeToken {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((r#"{"id": "9f86d081884c"}"#, "{}"));

    fn into_request(self) -> Result<Request, Refusal> {
        Ok(Request::ChangeAccess(AccessChange::RevokeToken { id: self.id.into() }))
    }
}

impl TryFrom<v1::RevokeAccessTokenRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::RevokeAccessTokenRequest) -> Result<Request, Refusal> {
        RevokeToken { id: request.id }.into_request()
    }
}

/// Request to set the quota of a namespace, of an identity or of the whole cell. Absent values are unlimited.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetQuota {
    /// The namespace: the part of names before their first slash; `*` for each without a quota of its own.
    pub namespace: Option<String>,
    /// Instead of a namespace: an identity; `*` for each without a quota of its own.
    pub identity: Option<String>,
    /// Maximum number of locks.
    pub locks: Option<u64>,
    /// Maximum number of waiting requests.
    pub waiters: Option<u64>,
    /// Maximum number of values.
    pub values: Option<u64>,
    /// Maximum number of requests per second.
    pub requests_per_s: Option<u32>,
    /// Maximum number of sessions of the identity.
    pub sessions: Option<u32>,
    /// Instead of both: most logical bytes of state of the whole cell; 0 for the default.
    pub state_bytes: Option<u64>,
}

impl Call for SetQuota {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"namespace": "builds", "locks": 1000, "requests_per_s": 200}"#, "{}"));

    fn into_request(self) -> Result<Request, Refusal> {
        let SetQuota { namespace, identity, locks, waiters, values, requests_per_s, sessions, state_bytes } =
            self;
        let quota = NamespaceQuota { locks, waiters, values, requests_per_s };
        let named = |name: Option<String>| name.filter(|name| !name.is_empty());
        let change = match (named(namespace), named(identity)) {
            (None, None) if quota.is_empty() && sessions.is_none() && state_bytes.is_some() => {
                AccessChange::SetStateBytes { bytes: state_bytes.filter(|bytes| *bytes > 0) }
            }
            _ if state_bytes.is_some() => {
                return Err(Refusal::invalid(
                    "state_bytes is for the whole cell: name neither a namespace nor an identity",
                ));
            }
            (Some(namespace), None) if sessions.is_none() => {
                AccessChange::SetQuota { namespace: namespace.into(), quota }
            }
            (None, Some(identity)) if quota.is_empty() => {
                AccessChange::SetSessions { identity: identity.into(), sessions }
            }
            _ => {
                return Err(Refusal::invalid(
                    "a quota is for a namespace (locks, waiters, values, requests_per_s), for an identity (sessions) or \
                     for the whole cell (state_bytes): name one of them with its values",
                ));
            }
        };
        Ok(Request::ChangeAccess(change))
    }
}

impl TryFrom<v1::SetQuotaRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::SetQuotaRequest) -> Result<Request, Refusal> {
        let quota = request.quota.unwrap_or_default();
        SetQuota {
            namespace: Some(quota.namespace),
            identity: Some(quota.identity),
            locks: quota.locks,
            waiters: quota.waiters,
            values: quota.values,
            requests_per_s: quota.requests_per_s,
            sessions: quota.sessions,
            state_bytes: quota.state_bytes,
        }
        .into_request()
    }
}

answers! {
    Answer::Access(access) => AccessState as access;
    Answer::NewToken(token) => NewToken as token;
    Answer::Done => v1::AccessDone as Self {};
    Answer::Access(access) => v1::AccessState as access.into();
    Answer::NewToken(token) => v1::NewAccessToken as token.into();
}
