//! Tells who asks, by what they show.

use lockkeeper_core::Access;
use lockkeeper_net::credentials::read_secret;
use lockkeeper_net::tls::Visitor;
use smol_str::SmolStr;

use super::port_security::SecurityError;
use super::who::ROOT;
use super::{Security, Who, tokens};
use crate::private_files;

/// Shortest root token.
const ROOT_TOKEN_MIN: usize = 32;
/// The beginning of the header with a token.
const BEARER: &str = "Bearer ";

/// Knows the root token, and where to look for the others.
#[derive(Debug, Default)]
pub struct Guard {
    root_token: Option<([u8; 16], [u8; 32])>,
    root_name: Option<SmolStr>,
}

/// Nobody knows this token.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownToken;

impl Guard {
    pub(crate) fn new(security: &Security) -> Result<Guard, SecurityError> {
        let root_token = match &security.root_token_file {
            None => None,
            Some(path) => {
                let readable = private_files::is_world_readable(path).unwrap_or(false);
                if readable && !security.root_token_readable {
                    return Err(SecurityError::RootToken(format!(
                        "everybody on this machine may read the root token in {0}: close the file with chmod 600 {0}, or \
                         say --root-token-readable if its file system has no modes",
                        path.display()
                    )));
                }
                let secret =
                    read_secret(path).map_err(|error| SecurityError::RootToken(error.to_string()))?;
                if secret.len() < ROOT_TOKEN_MIN {
                    return Err(SecurityError::RootToken(format!(
                        "the token in {} is shorter than {ROOT_TOKEN_MIN} characters: make one that nobody can guess \
                         with openssl rand -hex 32",
                        path.display()
                    )));
                }
                let mut salt = [0; 16];
                lockkeeper_net::random::fill(&mut salt)
                    .map_err(|error| SecurityError::RootToken(format!("no random bytes: {error}")))?;
                Some((salt, tokens::hash(&salt, secret.as_bytes())))
            }
        };
        Ok(Guard { root_token, root_name: security.root_name.as_deref().map(SmolStr::from) })
    }

    /// Whether nothing is allowed that no rule allows, also while there is no rule.
    pub fn is_strict(&self) -> bool {
        self.root_token.is_some() || self.root_name.is_some()
    }

    /// Who has this certificate.
    pub fn by_certificate(&self, visitor: &Visitor) -> Who {
        match &visitor.name {
            None => Who::Nobody,
            Some(name) if self.root_name.as_deref() == Some(name) => Who::Root,
            // Rules cannot name it, and in the audit trail it would pass for the other one.
            Some(name) if name == ROOT => Who::Nobody,
            Some(name) => Who::Certificate(name.into()),
        }
    }

    /// Who has this token.
    pub fn by_token(&self, token: &str, access: &Access) -> Result<Who, UnknownToken> {
        if let Some((id, secret)) = tokens::parts(token)
            && let Some(known) = access.token(id)
        {
            return match tokens::fits(known, secret) {
                true => Ok(Who::Token { id: id.into(), identity: known.identity.clone() }),
                false => Err(UnknownToken),
            };
        }
        match &self.root_token {
            Some((salt, hash)) if tokens::same(&tokens::hash(salt, token.as_bytes()), hash) => Ok(Who::Root),
            _ => Err(UnknownToken),
        }
    }
}

/// The token in an `Authorization` header.
pub fn bearer(header: &str) -> Option<&str> {
    let (word, token) = header.split_at_checked(BEARER.len())?;
    word.eq_ignore_ascii_case(BEARER).then(|| token.trim())
}
