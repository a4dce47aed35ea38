//! Rules, tokens and quotas as calls, for HTTP and gRPC alike.

use lockkeeper_core::{AccessChange, Command, Quota, Right, Rights};
use lockkeeper_proto::v1;

use crate::calls::Calls;
use crate::failure::Failure;
use crate::security::tokens;
use crate::security::who::ROOT;

impl Calls {
    /// All rules, tokens and quotas.
    pub fn access(&self) -> Result<v1::AccessState, Failure> {
        self.may_all(Right::Admin, "")?;
        let now = self.now()?;
        let table = self.shared().table();
        let access = table.access();
        let rules = access.rules().map(|(identity, prefix, rights)| v1::AccessRule {
            identity: identity.to_string(),
            prefix: prefix.to_string(),
            rights: rights.iter().map(|right| right.as_str().to_owned()).collect(),
        });
        let tokens = access.tokens().map(|(id, token)| v1::AccessTokenInfo {
            id: id.to_string(),
            identity: token.identity.to_string(),
            age_ms: now.ms_since(token.made),
        });
        let namespaces = access.quotas().map(|(namespace, quota)| {
            let used = access.usage_of(namespace);
            v1::Quota {
                namespace: namespace.to_string(),
                locks: quota.locks,
                waiters: quota.waiters,
                values: quota.values,
                requests_per_s: quota.requests_per_s,
                locks_used: used.locks,
                waiters_used: used.waiters,
                values_used: used.values,
                ..v1::Quota::default()
            }
        });
        let identities = access.session_quotas().map(|(identity, sessions)| v1::Quota {
            identity: identity.to_string(),
            sessions: Some(sessions),
            sessions_used: access.sessions_of(identity),
            ..v1::Quota::default()
        });
        Ok(v1::AccessState {
            rules: rules.collect(),
            tokens: tokens.collect(),
            quotas: namespaces.chain(identities).collect(),
        })
    }

    /// Allows an identity something.
    pub async fn grant_access(&self, asked: v1::GrantAccessRequest) -> Result<(), Failure> {
        let mut rights = Vec::new();
        for word in &asked.rights {
            rights.push(Right::from_word(word).ok_or_else(|| {
                Failure::Invalid(format!(
                    "\"{word}\" is no right: there are read, acquire, force_release and admin"
                ))
            })?);
        }
        not_root(&asked.identity)?;
        let (identity, prefix) = (asked.identity.into(), asked.prefix.into());
        self.change_access(AccessChange::Grant { identity, prefix, rights: Rights::of(rights) }).await
    }

    /// Takes a rule away.
    pub async fn revoke_access(&self, asked: v1::RevokeAccessRequest) -> Result<(), Failure> {
        let change = AccessChange::Revoke { identity: asked.identity.into(), prefix: asked.prefix.into() };
        self.change_access(change).await
    }

    /// Makes a token. Nobody can show it again.
    pub async fn create_token(&self, identity: &str) -> Result<v1::NewAccessToken, Failure> {
        self.may_all(Right::Admin, "")?;
        not_root(identity)?;
        let made = tokens::draw(identity)?;
        self.change_access(made.change).await?;
        Ok(v1::NewAccessToken { id: made.id.to_string(), identity: identity.to_owned(), token: made.text })
    }

    /// Makes a token worthless, also on connections that have shown it.
    pub async fn revoke_token(&self, id: &str) -> Result<(), Failure> {
        self.change_access(AccessChange::RevokeToken { id: id.into() }).await
    }

    /// Sets the bounds of a namespace, or of an identity.
    pub async fn set_quota(&self, asked: v1::Quota) -> Result<(), Failure> {
        let v1::Quota { namespace, locks, waiters, values, requests_per_s, identity, sessions, .. } = asked;
        let quota = Quota { locks, waiters, values, requests_per_s };
        let change = match (namespace.is_empty(), identity.is_empty()) {
            (false, true) if sessions.is_none() => {
                AccessChange::SetQuota { namespace: namespace.into(), quota }
            }
            (true, false) if quota.is_empty() => {
                AccessChange::SetSessions { identity: identity.into(), sessions }
            }
            _ => {
                return Err(Failure::Invalid(
                    "a quota is for a namespace (locks, waiters, values, requests_per_s) or for an identity \
                     (sessions): name one of them with what belongs to it"
                        .to_owned(),
                ));
            }
        };
        self.change_access(change).await
    }

    async fn change_access(&self, change: AccessChange) -> Result<(), Failure> {
        self.command(Command::ChangeAccess { by: self.signature(), change }).await.map(|_| ())
    }
}

fn not_root(identity: &str) -> Result<(), Failure> {
    match identity == ROOT {
        true => Err(Failure::Invalid(format!(
            "\"{ROOT}\" is whoever has the root token, and may do everything: choose another name"
        ))),
        false => Ok(()),
    }
}
