//! Access: rules, tokens and quotas.

use std::time::Duration;

use lockkeeper_api::v1;
pub use lockkeeper_core::Right;
use serde::{Serialize, Serializer};

use super::Admin;
use crate::error::Error;

/// Who may do what in a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AccessState {
    /// Access control is on: what no rule allows is refused.
    pub enabled: bool,
    /// The rules.
    pub rules: Vec<AccessRule>,
    /// The access tokens, without their secrets.
    pub tokens: Vec<AccessToken>,
    /// The quotas, and what is in use.
    pub quotas: Vec<Quota>,
}

/// What an identity may do with the names that begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AccessRule {
    /// The identity; `*` for everybody who is authenticated.
    pub identity: String,
    /// The beginning of the names; empty for all.
    pub prefix: String,
    /// `read`, `acquire`, `force_release`, `admin`.
    pub rights: Vec<String>,
}

/// An access token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AccessToken {
    /// Its public part.
    pub id: String,
    /// Whose it is.
    pub identity: String,
    /// How long ago it was made.
    #[serde(rename = "age_ms", serialize_with = "as_ms")]
    pub age: Duration,
}

/// A token that was made just now.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewAccessToken {
    /// Its public part.
    pub id: String,
    /// Whose it is.
    pub identity: String,
    /// The whole token. The cell keeps only its hash: nobody can show it again.
    pub token: String,
}

/// Never shows the token: values get into logs.
impl std::fmt::Debug for NewAccessToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NewAccessToken { id, identity, token: _ } = self;
        f.debug_struct("NewAccessToken").field("id", id).field("identity", identity).finish_non_exhaustive()
    }
}

/// The limits of a namespace, of an identity or of the whole cell. What is `None` is limited by the cell alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Quota {
    /// The part of the names before their first slash; `*` for each namespace without a quota of its own.
    pub namespace: Option<String>,
    /// Instead of a namespace: an identity; `*` for each without a quota of its own.
    pub identity: Option<String>,
    /// The most locks in use.
    pub locks: Option<u64>,
    /// The most requests that wait.
    pub waiters: Option<u64>,
    /// The most values.
    pub values: Option<u64>,
    /// The most requests in a second.
    pub requests_per_s: Option<u32>,
    /// The most sessions of the identity.
    pub sessions: Option<u32>,
    /// Locks in use now.
    pub locks_used: u64,
    /// Requests that wait now.
    pub waiters_used: u64,
    /// Values that exist now.
    pub values_used: u64,
    /// Sessions that are open now.
    pub sessions_used: u32,
    /// Instead of both: the most logical bytes of state of the whole cell; 0 sets the default.
    pub state_bytes: Option<u64>,
    /// Logical bytes of state now.
    pub state_bytes_used: u64,
}

impl Admin {
    /// The rules, tokens and quotas of the cell.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn access(&self) -> Result<AccessState, Error> {
        let request = v1::GetAccessRequest {};
        self.nodes.call(|mut node| async move { node.get_access(request).await }).await.map(AccessState::from)
    }

    /// Turns access control on, and makes the token of the first administrator. From then on every client shows an
    /// access token or a certificate, and what no rule allows is refused.
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe: after a dropped call access control may be on, and nobody has the token.
    pub async fn enable_access(&self, identity: &str) -> Result<NewAccessToken, Error> {
        let request = v1::EnableAccessRequest { identity: identity.to_owned() };
        let made = self
            .nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.enable_access(request).await }
            })
            .await;
        made.map(NewAccessToken::from)
    }

    /// Allows an identity (`*`: everybody who is authenticated) something with all names that begin with `prefix`.
    /// Replaces its earlier rule for that prefix.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have changed the rule.
    pub async fn grant_access(&self, identity: &str, prefix: &str, rights: &[Right]) -> Result<(), Error> {
        let request = v1::GrantAccessRequest {
            identity: identity.to_owned(),
            prefix: prefix.to_owned(),
            rights: rights.iter().map(|right| right.as_str().to_owned()).collect(),
        };
        self.nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.grant_access(request).await }
            })
            .await
            .map(drop)
    }

    /// Removes the rule of an identity for a prefix.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have removed the rule.
    pub async fn revoke_access(&self, identity: &str, prefix: &str) -> Result<(), Error> {
        let request = v1::RevokeAccessRequest { identity: identity.to_owned(), prefix: prefix.to_owned() };
        self.nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.revoke_access(request).await }
            })
            .await
            .map(drop)
    }

    /// Makes an access token for an identity.
    ///
    /// # Cancel safety
    ///
    /// After a dropped call there may be a token that nobody has: look at [`access`](Admin::access), and revoke it.
    pub async fn create_access_token(&self, identity: &str) -> Result<NewAccessToken, Error> {
        let request = v1::CreateAccessTokenRequest { identity: identity.to_owned() };
        let made = self
            .nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.create_access_token(request).await }
            })
            .await;
        made.map(NewAccessToken::from)
    }

    /// Makes an access token worthless, at once. `id` is its public part.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have revoked the token.
    pub async fn revoke_access_token(&self, id: &str) -> Result<(), Error> {
        let request = v1::RevokeAccessTokenRequest { id: id.to_owned() };
        self.nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.revoke_access_token(request).await }
            })
            .await
            .map(drop)
    }

    /// Sets a quota; what is `None` in it is not limited any more. The fields that end in `_used` are ignored.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have set the quota.
    pub async fn set_quota(&self, quota: Quota) -> Result<(), Error> {
        let request = v1::SetQuotaRequest { quota: Some(quota.into()) };
        self.nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.set_quota(request).await }
            })
            .await
            .map(drop)
    }
}

impl From<v1::AccessState> for AccessState {
    fn from(state: v1::AccessState) -> AccessState {
        let rule = |rule: v1::AccessRule| AccessRule {
            identity: rule.identity,
            prefix: rule.prefix,
            rights: rule.rights,
        };
        let token = |token: v1::AccessTokenInfo| AccessToken {
            id: token.id,
            identity: token.identity,
            age: Duration::from_millis(token.age_ms),
        };
        AccessState {
            enabled: state.enabled,
            rules: state.rules.into_iter().map(rule).collect(),
            tokens: state.tokens.into_iter().map(token).collect(),
            quotas: state.quotas.into_iter().map(Quota::from).collect(),
        }
    }
}

impl From<v1::NewAccessToken> for NewAccessToken {
    fn from(made: v1::NewAccessToken) -> NewAccessToken {
        NewAccessToken { id: made.id, identity: made.identity, token: made.token }
    }
}

impl From<v1::Quota> for Quota {
    fn from(quota: v1::Quota) -> Quota {
        let text = |text: String| (!text.is_empty()).then_some(text);
        Quota {
            namespace: text(quota.namespace),
            identity: text(quota.identity),
            locks: quota.locks,
            waiters: quota.waiters,
            values: quota.values,
            requests_per_s: quota.requests_per_s,
            sessions: quota.sessions,
            locks_used: quota.locks_used,
            waiters_used: quota.waiters_used,
            values_used: quota.values_used,
            sessions_used: quota.sessions_used,
            state_bytes: quota.state_bytes,
            state_bytes_used: quota.state_bytes_used,
        }
    }
}

impl From<Quota> for v1::Quota {
    fn from(quota: Quota) -> v1::Quota {
        v1::Quota {
            namespace: quota.namespace.unwrap_or_default(),
            identity: quota.identity.unwrap_or_default(),
            locks: quota.locks,
            waiters: quota.waiters,
            values: quota.values,
            requests_per_s: quota.requests_per_s,
            sessions: quota.sessions,
            state_bytes: quota.state_bytes,
            ..v1::Quota::default()
        }
    }
}

fn as_ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
