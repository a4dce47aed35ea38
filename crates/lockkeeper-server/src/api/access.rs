//! Rules, access tokens and quotas.

use lockkeeper_api::Request;
use lockkeeper_api::access::NewToken;
use lockkeeper_core::{AccessChange, Right};

use super::Api;
use crate::failure::Failure;
use crate::security::Principal;
use crate::security::principal::ROOT;
use crate::security::tokens;

impl Api {
    /// Refuses changes that would lock out everyone who could undo them.
    pub(super) fn check_change(&self, change: &AccessChange) -> Result<(), Failure> {
        match change {
            AccessChange::Grant { identity, prefix, rights } => {
                check_not_root(identity)?;
                self.check_enabled()?;
                match rights.iter().any(|right| right == Right::Admin) {
                    true => Ok(()),
                    false => self.check_keeps_administrator(identity, prefix),
                }
            }
            AccessChange::Revoke { identity, prefix } => self.check_keeps_administrator(identity, prefix),
            AccessChange::AddToken { identity, .. } => {
                check_not_root(identity)?;
                self.check_enabled()
            }
            AccessChange::Enable { identity, .. } => {
                check_not_root(identity)?;
                self.check_has_no_root()
            }
            AccessChange::RevokeToken { id } => self.check_keeps_administrators_token(id),
            AccessChange::SetQuota { .. }
            | AccessChange::SetSessions { .. }
            | AccessChange::SetStateBytes { .. } => Ok(()),
        }
    }

    /// Turns access control on. Returns the token of its first administrator, which is shown only once.
    pub(super) async fn enable_access(&self, identity: &str) -> Result<NewToken, Failure> {
        let token = tokens::generate(identity)?;
        let change = match token.change {
            AccessChange::AddToken { id, identity, salt, hash } => {
                AccessChange::Enable { id, identity, salt, hash }
            }
            other => other,
        };
        self.change_access(change).await?;
        Ok(NewToken { id: token.id.to_string(), identity: identity.to_owned(), token: token.text })
    }

    /// Creates an access token. It cannot be shown again.
    pub(super) async fn create_token(&self, identity: &str) -> Result<NewToken, Failure> {
        let token = tokens::generate(identity)?;
        self.change_access(token.change).await?;
        Ok(NewToken { id: token.id.to_string(), identity: identity.to_owned(), token: token.text })
    }

    async fn change_access(&self, change: AccessChange) -> Result<(), Failure> {
        let command = self.admit(Request::ChangeAccess(change))?.into_command()?;
        self.run(command).await.map(|_| ())
    }

    /// Fails while access control is off: a first rule or token would lock out every caller that has none.
    fn check_enabled(&self) -> Result<(), Failure> {
        match self.is_enforced() {
            true => Ok(()),
            false => Err(Failure::Invalid(
                "access control is off, and the first rule or token would lock out every client that presents no access \
                 token: turn it on with lockkeeper access enable, which creates the first administrator's token"
                    .to_owned(),
            )),
        }
    }

    fn check_has_no_root(&self) -> Result<(), Failure> {
        match self.authenticator().has_root() {
            false => Ok(()),
            true => Err(Failure::Invalid(
                "access control is already on: this node was started with --root-token-file or --root-name, and root \
                 creates further tokens with lockkeeper access token create"
                    .to_owned(),
            )),
        }
    }

    /// Refuses a change that removes the last administrator, unless there is a root.
    fn check_keeps_administrator(&self, identity: &str, prefix: &str) -> Result<(), Failure> {
        let table = self.shared().table();
        let access = table.access();
        let is_administrators = access.allows_all(identity, Right::Admin, "") && prefix.is_empty();
        match self.authenticator().has_root()
            || !is_administrators
            || access.has_other_administrator(identity, prefix)
        {
            true => Ok(()),
            false => Err(Failure::Invalid(format!(
                "\"{identity}\" is the last administrator, and the change would leave none: grant admin on \"\" to \
                 another identity first"
            ))),
        }
    }

    /// Refuses to revoke the last token of an administrator, unless there is a root, or the caller shows by its certificate
    /// that administrators need no token. Whether another one has a certificate is unknown.
    fn check_keeps_administrators_token(&self, id: &str) -> Result<(), Failure> {
        let table = self.shared().table();
        let access = table.access();
        let is_administrator = |identity: &str| access.allows_all(identity, Right::Admin, "");
        let is_administrators =
            |id: &str| access.token(id).is_some_and(|token| is_administrator(&token.identity));
        let needs_no_token = match self.principal() {
            Principal::Process => true,
            Principal::Certificate(name) => is_administrator(name),
            _ => self.authenticator().has_root(),
        };
        if needs_no_token
            || !is_administrators(id)
            || access.tokens().any(|(other, _)| other != id && is_administrators(other))
        {
            return Ok(());
        }
        Err(Failure::Invalid(format!(
            "\"{id}\" is the last token of an administrator, and without it nobody could create another: create one first \
             (lockkeeper access token create), or revoke it as an administrator with a client certificate"
        )))
    }
}

fn check_not_root(identity: &str) -> Result<(), Failure> {
    match identity == ROOT {
        true => Err(Failure::Invalid(format!(
            "\"{ROOT}\" is reserved for the holder of the root token, who may do everything: choose another name"
        ))),
        false => Ok(()),
    }
}
