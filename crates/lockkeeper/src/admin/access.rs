//! Access control: rules, tokens and quotas.

use lockkeeper_api::access::AccessTokenInfo;
pub use lockkeeper_api::access::{AccessRule, AccessState, NewToken as NewAccessToken, Quota};
use lockkeeper_api::v1;
pub use lockkeeper_core::Right;

use super::Admin;
use crate::error::Error;

/// An access token, without its secret.
pub type AccessToken = AccessTokenInfo;

impl Admin {
    /// Returns the access rules, tokens and quotas of the cell.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: it only reads.
    pub async fn access(&self) -> Result<AccessState, Error> {
        let request = v1::GetAccessRequest {};
        self.nodes.call(|mut node| async move { node.get_access(request).await }).await.map(AccessState::from)
    }

    /// Turns access control on and creates the token of the first administrator.
    ///
    /// From then on every client needs an access token or a certificate, and requests that no rule allows are refused.
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe: after a dropped call access control may be on although nobody received the token.
    pub async fn enable_access(&self, identity: &str) -> Result<NewAccessToken, Error> {
        let request = v1::EnableAccessRequest { identity: identity.to_owned() };
        let created = self
            .nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.enable_access(request).await }
            })
            .await;
        created.map(NewAccessToken::from)
    }

    /// Grants an identity (`*`: every authenticated client) rights on all names that begin with `prefix`.
    ///
    /// Replaces the identity's earlier rule for that prefix.
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

    /// Creates an access token for an identity.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave a token that nobody received: find it with [`access`](Admin::access) and revoke it.
    pub async fn create_access_token(&self, identity: &str) -> Result<NewAccessToken, Error> {
        let request = v1::CreateAccessTokenRequest { identity: identity.to_owned() };
        let created = self
            .nodes
            .call(|mut node| {
                let request = request.clone();
                async move { node.create_access_token(request).await }
            })
            .await;
        created.map(NewAccessToken::from)
    }

    /// Revokes an access token immediately. `id` is its public part.
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

    /// Sets a quota; a limit of `None` removes the limit. The fields that end in `_used` are ignored.
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
