//! The credentials of a client: the authorities it trusts, its certificate, its access token. They come from files and the
//! environment only: every user of a machine can read a command line.

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::TcpStream;

use crate::net::{self, Stream};
use crate::tls::{ClientTls, KeyPair, TlsError};

/// Variable with the authority that signed the nodes' certificates. If it is set, all connections use TLS.
pub const CA: &str = "LOCKKEEPER_CA";
/// Variable with the client's own certificate.
pub const CERT: &str = "LOCKKEEPER_CERT";
/// Variable with the key of that certificate.
pub const KEY: &str = "LOCKKEEPER_KEY";
/// Variable with the path of a file that contains an access token.
pub const TOKEN_FILE: &str = "LOCKKEEPER_AUTH_TOKEN_FILE";
/// Variable with the access token itself.
pub const TOKEN: &str = "LOCKKEEPER_AUTH_TOKEN";

/// Limit on an access token in a file.
const TOKEN_BYTES_MAX: usize = 4 * 1024;

/// The credentials of a client. Cheap to clone.
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
    /// A file that is read for each connection, so that it can be replaced without a restart.
    File(PathBuf),
}

/// Does not print the token: settings are logged.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = !matches!(self.token, Token::None);
        f.debug_struct("Credentials").field("tls", &self.tls.is_some()).field("token", &token).finish()
    }
}

impl Credentials {
    /// Reads the credentials from the environment.
    pub fn from_environment() -> Result<Credentials, TlsError> {
        Credentials::default().or_environment(|name| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        })
    }

    /// Fills in missing credentials from variables; `get` returns their values.
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
                        "{CERT} and {KEY} need {CA}: set it to the authority of the nodes' certificates"
                    )));
                }
                (Some(_), ..) => {
                    return Err(TlsError::new(format!(
                        "only one of {CERT} and {KEY} is set: set both, or neither"
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

    /// Uses TLS: trusts nodes with a certificate of this authority, and presents a certificate of its own.
    pub fn tls(self, ca: impl Into<PathBuf>, own: Option<KeyPair>) -> Result<Credentials, TlsError> {
        Ok(Credentials { tls: Some(ClientTls::new(ca, own)?), ..self })
    }

    /// Presents this access token.
    pub fn token(self, token: impl Into<String>) -> Credentials {
        Credentials { token: Token::Text(token.into()), ..self }
    }

    /// Presents the access token in this file.
    pub fn token_file(self, path: impl Into<PathBuf>) -> Credentials {
        Credentials { token: Token::File(path.into()), ..self }
    }

    /// Returns the access token to present, if any.
    pub fn access_token(&self) -> io::Result<Option<String>> {
        match &self.token {
            Token::None => Ok(None),
            Token::Text(text) => Ok(Some(text.clone())),
            Token::File(path) => read_secret(path).map(Some),
        }
    }

    /// Whether connections use TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects to `host:port`, with TLS if it is set. `prepare` sets socket options.
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

/// Reads a secret from a file, without the newline at its end.
pub fn read_secret(path: &Path) -> io::Result<String> {
    let failed = |why: &dyn std::fmt::Display| {
        io::Error::other(format!("failed to read a token from {}: {why}", path.display()))
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
    fn incomplete_settings_are_an_error() {
        assert!(from(&[(CERT, "a"), (KEY, "b")]).is_err());
        assert!(from(&[(CA, "a"), (CERT, "b")]).is_err());
        assert!(from(&[(CA, "/no/such/file")]).is_err());
        assert!(!from(&[]).unwrap().has_tls());
    }

    #[test]
    fn token_is_never_printed() {
        let shown = format!("{:?}", from(&[(TOKEN, "lk_secret")]).unwrap());
        assert!(!shown.contains("lk_secret"), "{shown}");
    }
}
