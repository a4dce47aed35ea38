//! Rules, tokens and quotas as calls, for HTTP and gRPC alike.

use lockkeeper_api::v1;
use lockkeeper_core::{AccessChange, Command, Quota, Right, Rights};

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
        let cell = v1::Quota {
            state_bytes: Some(table.state_bytes_max()),
            state_bytes_used: table.state_bytes(),
            ..v1::Quota::default()
        };
        Ok(v1::AccessState {
            rules: rules.collect(),
            tokens: tokens.collect(),
            quotas: [cell].into_iter().chain(namespaces).chain(identities).collect(),
            enabled: self.guard().is_strict() || access.is_enabled(),
        })
    }

    /// Turns access control on. The token of its first administrator is shown once.
    pub async fn enable_access(&self, identity: &str) -> Result<v1::NewAccessToken, Failure> {
        not_root(identity)?;
        if self.guard().is_strict() {
            return Err(Failure::Invalid(
                "access control is on already: this node was started with --root-token-file or --root-name, and root \
                 makes further tokens with lockkeeper access token create"
                    .to_owned(),
            ));
        }
        let made = tokens::draw(identity)?;
        let change = match made.change {
            AccessChange::AddToken { id, identity, salt, hash } => {
                AccessChange::Enable { id, identity, salt, hash }
            }
            other => other,
        };
        self.change_access(change).await?;
        Ok(v1::NewAccessToken { id: made.id.to_string(), identity: identity.to_owned(), token: made.text })
    }

    /// A first rule or token would shut out everybody who has none, so that is a decision of its own.
    fn must_be_enabled(&self) -> Result<(), Failure> {
        match self.is_enforced() {
            true => Ok(()),
            false => Err(Failure::Invalid(
                "access control is off, and the first rule or token would shut out every client that shows no access \
                 token: turn it on with lockkeeper access enable, which makes the first administrator's token"
                    .to_owned(),
            )),
        }
    }

    /// Refuses a change that leaves nobody who could change anything again, unless there is a root.
    fn must_keep_administrator(&self, identity: &str, prefix: &str) -> Result<(), Failure> {
        let table = self.shared().table();
        let access = table.access();
        let is_administrators = access.allows_all(identity, Right::Admin, "") && prefix.is_empty();
        match self.guard().is_strict()
            || !is_administrators
            || access.has_other_administrator(identity, prefix)
        {
            true => Ok(()),
            false => Err(Failure::Invalid(format!(
                "\"{identity}\" is the last administrator, and nobody could change rules again: grant admin on \"\" to \
                 another identity first"
            ))),
        }
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
        self.may_all(Right::Admin, "")?;
        self.must_be_enabled()?;
        if !rights.contains(&Right::Admin) {
            self.must_keep_administrator(&asked.identity, &asked.prefix)?;
        }
        let (identity, prefix) = (asked.identity.into(), asked.prefix.into());
        self.change_access(AccessChange::Grant { identity, prefix, rights: Rights::of(rights) }).await
    }

    /// Takes a rule away.
    pub async fn revoke_access(&self, asked: v1::RevokeAccessRequest) -> Result<(), Failure> {
        self.may_all(Right::Admin, "")?;
        self.must_keep_administrator(&asked.identity, &asked.prefix)?;
        let change = AccessChange::Revoke { identity: asked.identity.into(), prefix: asked.prefix.into() };
        self.change_access(change).await
    }

    /// Makes a token. Nobody can show it again.
    pub async fn create_token(&self, identity: &str) -> Result<v1::NewAccessToken, Failure> {
        self.may_all(Right::Admin, "")?;
        not_root(identity)?;
        self.must_be_enabled()?;
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
        let v1::Quota {
            namespace,
            locks,
            waiters,
            values,
            requests_per_s,
            identity,
            sessions,
            state_bytes,
            ..
        } = asked;
        let quota = Quota { locks, waiters, values, requests_per_s };
        let change = match (namespace.is_empty(), identity.is_empty()) {
            (true, true) if quota.is_empty() && sessions.is_none() && state_bytes.is_some() => {
                AccessChange::SetStateBytes { bytes: state_bytes.filter(|bytes| *bytes > 0) }
            }
            _ if state_bytes.is_some() => {
                return Err(Failure::Invalid(
                    "state_bytes is for the whole cell: name neither a namespace nor an identity".to_owned(),
                ));
            }
            (false, true) if sessions.is_none() => {
                AccessChange::SetQuota { namespace: namespace.into(), quota }
            }
            (true, false) if quota.is_empty() => {
                AccessChange::SetSessions { identity: identity.into(), sessions }
            }
            _ => {
                return Err(Failure::Invalid(
                    "a quota is for a namespace (locks, waiters, values, requests_per_s), for an identity \
                     (sessions) or for the whole cell (state_bytes): name one of them with what belongs to it"
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
