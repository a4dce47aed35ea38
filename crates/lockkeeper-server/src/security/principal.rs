//! The principal of a request.

use smol_str::SmolStr;

/// The identity of root, which may do everything.
pub const ROOT: &str = "root";

/// On whose behalf a request is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// This process itself: the embedded engine.
    Process,
    /// A caller without credentials.
    Anonymous,
    /// The owner of the root token or the root certificate.
    Root,
    /// A caller with a client certificate of this name.
    Certificate(SmolStr),
    /// A caller with an access token.
    Token {
        /// The token's public id, by which it can be revoked.
        id: SmolStr,
        /// The token's owner.
        identity: SmolStr,
    },
}

impl Principal {
    /// Returns the identity that rules, sessions and the audit trail use.
    pub fn identity(&self) -> Option<SmolStr> {
        match self {
            Principal::Process | Principal::Anonymous => None,
            Principal::Root => Some(ROOT.into()),
            Principal::Certificate(name) => Some(name.clone()),
            Principal::Token { identity, .. } => Some(identity.clone()),
        }
    }
}
