//! Authenticates callers by certificate or access token.

use lockkeeper_core::Access;
use lockkeeper_net::credentials::read_secret;
use lockkeeper_net::tls::Visitor;
use smol_str::SmolStr;

use super::port_security::SecurityError;
use super::principal::ROOT;
use super::{Principal, Security, tokens};
use crate::data_dir::private_files;

/// Length of the shortest root token.
const ROOT_TOKEN_MIN: usize = 32;
/// The scheme of an `Authorization` header with a token.
const BEARER: &str = "Bearer ";

/// Authenticates callers. Knows the root; other tokens are in the lock table.
#[derive(Debug, Default)]
pub struct Authenticator {
    root_token: Option<([u8; 16], [u8; 32])>,
    root_name: Option<SmolStr>,
}

/// The token is unknown.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownToken;

impl Authenticator {
    pub(crate) fn new(security: &Security) -> Result<Authenticator, SecurityError> {
        let root_token = match &security.root_token_file {
            None => None,
            Some(path) => {
                let readable = private_files::is_world_readable(path).unwrap_or(false);
                if readable && !security.root_token_readable && !security.allow_insecure_files {
                    return Err(SecurityError::RootToken(format!(
                        "every user of this machine can read the root token in {0}: restrict it with chmod 600 {0}, or pass \
                         --root-token-readable if its file system has no permissions",
                        path.display()
                    )));
                }
                let changeable = private_files::is_changeable_by_others(path).unwrap_or(false);
                if changeable && !security.allow_insecure_files {
                    return Err(SecurityError::RootToken(format!(
                        "another user of this machine can change the root token in {0}: give it to the node's user with chown and \
                         restrict it with chmod 600 {0}, or pass --allow-insecure-files if its file system has no owners or modes",
                        path.display()
                    )));
                }
                let secret =
                    read_secret(path).map_err(|error| SecurityError::RootToken(error.to_string()))?;
                if secret.len() < ROOT_TOKEN_MIN {
                    return Err(SecurityError::RootToken(format!(
                        "the token in {} is shorter than {ROOT_TOKEN_MIN} characters: generate one with \
                         openssl rand -hex 32",
                        path.display()
                    )));
                }
                let mut salt = [0; 16];
                lockkeeper_net::random::fill(&mut salt).map_err(|error| {
                    SecurityError::RootToken(format!(
                        "failed to get random bytes from the operating system: {error}"
                    ))
                })?;
                Some((salt, tokens::hash(&salt, secret.as_bytes())))
            }
        };
        Ok(Authenticator { root_token, root_name: security.root_name.as_deref().map(SmolStr::from) })
    }

    /// Whether the node has a root. Then access control is enforced even while there are no rules.
    pub fn has_root(&self) -> bool {
        self.root_token.is_some() || self.root_name.is_some()
    }

    /// Returns the owner of a certificate.
    pub fn by_certificate(&self, visitor: &Visitor) -> Principal {
        match &visitor.name {
            None => Principal::Anonymous,
            Some(name) if self.root_name.as_deref() == Some(name) => Principal::Root,
            // The name is reserved: in the audit trail it would look like the root.
            Some(name) if name == ROOT => Principal::Anonymous,
            Some(name) => Principal::Certificate(name.into()),
        }
    }

    /// Returns the owner of a token.
    pub fn by_token(&self, token: &str, access: &Access) -> Result<Principal, UnknownToken> {
        if let Some((id, secret)) = tokens::parts(token)
            && let Some(known) = access.token(id)
        {
            return match tokens::verify(known, secret) {
                true => Ok(Principal::Token { id: id.into(), identity: known.identity.clone() }),
                false => Err(UnknownToken),
            };
        }
        match &self.root_token {
            Some((salt, hash)) if tokens::constant_time_eq(&tokens::hash(salt, token.as_bytes()), hash) => {
                Ok(Principal::Root)
            }
            _ => Err(UnknownToken),
        }
    }
}

/// Returns the token in an `Authorization` header.
pub fn bearer(header: &str) -> Option<&str> {
    let (word, token) = header.split_at_checked(BEARER.len())?;
    word.eq_ignore_ascii_case(BEARER).then(|| token.trim())
}
