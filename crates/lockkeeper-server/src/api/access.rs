//! Rules, access tokens and quotas.

use lockkeeper_api::Request;
use lockkeeper_api::access::NewToken;
use lockkeeper_core::{AccessChange, Right};

use super::Api;
use crate::failure::Failure;
use crate::security::tokens;
use crate::security::who::ROOT;

impl Api {
    /// Refuses changes that would shut out those who could take them back.
    pub(super) fn check_change(&self, change: &AccessChange) -> Result<(), Failure> {
        match change {
            AccessChange::Grant { identity, prefix, rights } => {
                not_root(identity)?;
                self.must_be_enabled()?;
                match rights.iter().any(|right| right == Right::Admin) {
                    true => Ok(()),
                    false => self.must_keep_administrator(identity, prefix),
                }
            }
            AccessChange::Revoke { identity, prefix } => self.must_keep_administrator(identity, prefix),
            AccessChange::AddToken { identity, .. } => {
                not_root(identity)?;
                self.must_be_enabled()
            }
            AccessChange::Enable { identity, .. } => {
                not_root(identity)?;
                self.must_not_be_strict()
            }
            AccessChange::RevokeToken { .. }
            | AccessChange::SetQuota { .. }
            | AccessChange::SetSessions { .. }
            | AccessChange::SetStateBytes { .. } => Ok(()),
        }
    }

    /// Turns access control on. The token of its first administrator is shown once.
    pub(super) async fn enable_access(&self, identity: &str) -> Result<NewToken, Failure> {
        let made = tokens::draw(identity)?;
        let change = match made.change {
            AccessChange::AddToken { id, identity, salt, hash } => {
                AccessChange::Enable { id, identity, salt, hash }
            }
            other => other,
        };
        self.change_access(change).await?;
        Ok(NewToken { id: made.id.to_string(), identity: identity.to_owned(), token: made.text })
    }

    /// Makes an access token. It cannot be shown again.
    pub(super) async fn create_token(&self, identity: &str) -> Result<NewToken, Failure> {
        let made = tokens::draw(identity)?;
        self.change_access(made.change).await?;
        Ok(NewToken { id: made.id.to_string(), identity: identity.to_owned(), token: made.text })
    }

    async fn change_access(&self, change: AccessChange) -> Result<(), Failure> {
        let command = self.admit(Request::ChangeAccess(change))?.into_command()?;
        self.run(command).await.map(|_| ())
    }

    /// Access control must have been turned on: a first rule or token would shut out everybody who has none.
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

    fn must_not_be_strict(&self) -> Result<(), Failure> {
        match self.guard().is_strict() {
            false => Ok(()),
            true => Err(Failure::Invalid(
                "access control is on already: this node was started with --root-token-file or --root-name, and root \
                 makes further tokens with lockkeeper access token create"
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
}

fn not_root(identity: &str) -> Result<(), Failure> {
    match identity == ROOT {
        true => Err(Failure::Invalid(format!(
            "\"{ROOT}\" is whoever has the root token, and may do everything: choose another name"
        ))),
        false => Ok(()),
    }
}
