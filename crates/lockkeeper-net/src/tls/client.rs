//! TLS of the side that connects.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;

use super::files::{self, KeyPair, TlsError};
use super::reload::Reloadable;
use crate::net::Stream;

/// TLS settings for outgoing connections. Cheap to clone.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<Reloadable<Arc<ClientConfig>>>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientTls")
    }
}

impl ClientTls {
    /// Trusts nodes whose certificate was signed by an authority in `ca` for the name or address of the connection, and presents
    /// `own`, if there is one.
    pub fn new(ca: impl Into<PathBuf>, own: Option<KeyPair>) -> Result<ClientTls, TlsError> {
        let ca = ca.into();
        let watched = std::iter::once(ca.clone())
            .chain(own.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]))
            .collect();
        let config = Reloadable::new(watched, move || {
            let builder = ClientConfig::builder_with_provider(super::provider())
                .with_safe_default_protocol_versions()
                .map_err(|error| TlsError::new(error.to_string()))?
                .with_root_certificates(files::authorities(&[&ca])?);
            let mut config = match &own {
                None => builder.with_no_client_auth(),
                Some(pair) => builder
                    .with_client_auth_cert(files::certificates(&pair.certificate)?, files::key(&pair.key)?)
                    .map_err(|error| {
                        TlsError::new(format!(
                            "{} and {} do not match: {error}",
                            pair.certificate.display(),
                            pair.key.display()
                        ))
                    })?,
            };
            config.resumption = Resumption::disabled();
            Ok(Arc::new(config))
        })?;
        Ok(ClientTls { config: Arc::new(config) })
    }

    /// Performs the handshake on a connection to `host:port`. `protocol` is the ALPN protocol to negotiate, if any.
    pub async fn wrap(&self, address: &str, stream: Stream, protocol: Option<&str>) -> io::Result<Stream> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            io::Error::other(format!(
                "{host} is not a name that a certificate can contain: use a DNS name or an IP address"
            ))
        })?;
        let connector = TlsConnector::from((*self.config.current()).clone());
        let protocols = protocol.map(|protocol| protocol.as_bytes().to_vec()).into_iter().collect();
        let stream = connector.with_alpn(protocols).connect(name, stream).await?;
        Ok(Stream::Other(Box::new(stream)))
    }
}
