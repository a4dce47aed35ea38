//! What a client shows to a cell: whom it trusts, its certificate, its access token. Files and environment only: a
//! command line can be read by every user of a machine.

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::TcpStream;

use crate::net::{self, Stream};
use crate::tls::{ClientTls, KeyPair, TlsError};

/// The authority that has signed the nodes' certificates. If it is set, nothing but TLS is spoken.
pub const CA: &str = "LOCKKEEPER_CA";
/// The client's own certificate.
pub const CERT: &str = "LOCKKEEPER_CERT";
/// Its key.
pub const KEY: &str = "LOCKKEEPER_KEY";
/// A file with an access token.
pub const TOKEN_FILE: &str = "LOCKKEEPER_AUTH_TOKEN_FILE";
/// The access token itself.
pub const TOKEN: &str = "LOCKKEEPER_AUTH_TOKEN";

/// Longest access token that is read from a file.
const TOKEN_BYTES_MAX: usize = 4 * 1024;

/// How a client comes to a cell. Cheap to clone.
#[derive(Clone, Default)]
pub struct Credentials {
    tls: Option<ClientTls>,
    token: Token,
}

#[derive(Clone, Default)]
enum Token {
    #[default]
    None,
    Text(String),
    /// Read again for each connection, so that it can be changed without a restart.
    File(PathBuf),
}

/// Never shows the token: settings get into logs.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = !matches!(self.token, Token::None);
        f.debug_struct("Credentials").field("tls", &self.tls.is_some()).field("token", &token).finish()
    }
}

impl Credentials {
    /// As the environment says.
    pub fn from_environment() -> Result<Credentials, TlsError> {
        Credentials::default().or_environment(|name| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        })
    }

    /// Fills in what has not been set, by what `get` gives for the names of the environment.
    pub fn or_environment(self, get: impl Fn(&str) -> Option<PathBuf>) -> Result<Credentials, TlsError> {
        let mut filled = self;
        if filled.tls.is_none() {
            filled = match (get(CA), get(CERT), get(KEY)) {
                (None, None, None) => filled,
                (Some(ca), None, None) => filled.tls(ca, None)?,
                (Some(ca), Some(certificate), Some(key)) => {
                    filled.tls(ca, Some(KeyPair { certificate, key }))?
                }
                (None, ..) => {
                    return Err(TlsError::new(format!(
                        "{CERT} and {KEY} are for TLS: name the authority of the nodes' certificates with {CA}"
                    )));
                }
                (Some(_), ..) => {
                    return Err(TlsError::new(format!(
                        "{CERT} and {KEY} belong together: set both, or neither"
                    )));
                }
            };
        }
        if matches!(filled.token, Token::None) {
            filled.token = match (get(TOKEN_FILE), get(TOKEN)) {
                (Some(file), _) => Token::File(file),
                (None, Some(text)) => Token::Text(text.to_string_lossy().trim().to_owned()),
                (None, None) => Token::None,
            };
        }
        Ok(filled)
    }

    /// Speaks TLS: trusts nodes that this authority vouches for, and shows this certificate.
    pub fn tls(self, ca: impl Into<PathBuf>, own: Option<KeyPair>) -> Result<Credentials, TlsError> {
        Ok(Credentials { tls: Some(ClientTls::new(ca, own)?), ..self })
    }

    /// Shows this access token.
    pub fn token(self, token: impl Into<String>) -> Credentials {
        Credentials { token: Token::Text(token.into()), ..self }
    }

    /// Shows the access token in this file.
    pub fn token_file(self, path: impl Into<PathBuf>) -> Credentials {
        Credentials { token: Token::File(path.into()), ..self }
    }

    /// The access token to show, if there is one.
    pub fn access_token(&self) -> io::Result<Option<String>> {
        match &self.token {
            Token::None => Ok(None),
            Token::Text(text) => Ok(Some(text.clone())),
            Token::File(path) => read_secret(path).map(Some),
        }
    }

    /// Whether connections are made under TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects to `host:port`, under TLS if it is set. `prepare` sets options of the socket.
    pub async fn connect(
        &self,
        address: &str,
        protocol: Option<&str>,
        prepare: impl FnOnce(&TcpStream) -> io::Result<()>,
    ) -> io::Result<Stream> {
        let stream = net::connect(address).await?;
        if let Stream::Tcp(socket) = &stream {
            prepare(socket)?;
        }
        match &self.tls {
            None => Ok(stream),
            Some(tls) => tls.wrap(address, stream, protocol).await,
        }
    }
}

/// The secret in a file, without the end of its line.
pub fn read_secret(path: &Path) -> io::Result<String> {
    let failed = |why: &dyn std::fmt::Display| {
        io::Error::other(format!("no token can be read from {}: {why}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let secret = text.trim();
    match secret.len() {
        0 => Err(failed(&"it is empty")),
        length if length > TOKEN_BYTES_MAX => Err(failed(&"it is too long")),
        _ => Ok(secret.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(set: &[(&str, &str)]) -> Result<Credentials, TlsError> {
        Credentials::default().or_environment(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value))
        })
    }

    #[test]
    fn half_a_setting_is_an_error_and_no_plain_connection() {
        assert!(from(&[(CERT, "a"), (KEY, "b")]).is_err());
        assert!(from(&[(CA, "a"), (CERT, "b")]).is_err());
        assert!(from(&[(CA, "/no/such/file")]).is_err());
        assert!(!from(&[]).unwrap().has_tls());
    }

    #[test]
    fn the_token_is_never_shown() {
        let shown = format!("{:?}", from(&[(TOKEN, "lk_secret")]).unwrap());
        assert!(!shown.contains("lk_secret"), "{shown}");
    }
}
