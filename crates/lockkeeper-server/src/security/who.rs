//! Who asks.

use smol_str::SmolStr;

/// The identity that may do everything.
pub const ROOT: &str = "root";

/// Whoever asks for something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// This process itself: the embedded engine.
    Process,
    /// Somebody who has shown nothing.
    Nobody,
    /// Who has the root token or the root certificate.
    Root,
    /// Somebody with a certificate of this name.
    Certificate(SmolStr),
    /// Somebody with an access token.
    Token {
        /// Its public part, by which it can be revoked at any time.
        id: SmolStr,
        /// Whose it is.
        identity: SmolStr,
    },
}

impl Who {
    /// The name by which rules, sessions and the audit trail know them.
    pub fn identity(&self) -> Option<SmolStr> {
        match self {
            Who::Process | Who::Nobody => None,
            Who::Root => Some(ROOT.into()),
            Who::Certificate(name) => Some(name.clone()),
            Who::Token { identity, .. } => Some(identity.clone()),
        }
    }
}
