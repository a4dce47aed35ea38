//! TLS of the side that accepts connections.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::files::{self, KeyPair, TlsError};
use super::reload::Reloadable;
use crate::net::Stream;

/// TLS files of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// Our own certificate and key.
    pub own: KeyPair,
    /// Authority of the certificates that identify clients.
    pub client_ca: Option<PathBuf>,
    /// Authority of the certificates of members.
    pub peer_ca: Option<PathBuf>,
    /// Whether every connection has to present a certificate.
    pub required: bool,
}

/// TLS settings for incoming connections. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    loaded: Arc<Reloadable<LoadedConfig>>,
}

struct LoadedConfig {
    config: Arc<ServerConfig>,
    names: Vec<String>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    members: Option<Arc<dyn ClientCertVerifier>>,
}

/// The identity of the other end of a connection, by its certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visitor {
    /// The name in a certificate of the authority of clients.
    pub name: Option<String>,
    /// Whether its certificate was signed by the authority of members.
    pub member: bool,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls")
    }
}

impl ServerTls {
    /// Reads the files.
    pub fn new(from: ServerTlsFiles) -> Result<ServerTls, TlsError> {
        let watched = [Some(&from.own.certificate), Some(&from.own.key)]
            .into_iter()
            .chain([from.client_ca.as_ref(), from.peer_ca.as_ref()])
            .flatten()
            .cloned()
            .collect();
        let loaded = Reloadable::new(watched, move || LoadedConfig::new(&from))?;
        Ok(ServerTls { loaded: Arc::new(loaded) })
    }

    /// The DNS names in our own certificate.
    pub fn names(&self) -> Vec<String> {
        self.loaded.current().names.clone()
    }

    /// Performs the handshake on an accepted connection. The other end decides how long it takes: give it a time limit.
    pub async fn accept(&self, stream: Stream) -> io::Result<(Stream, Visitor)> {
        let loaded = self.loaded.current();
        let stream = TlsAcceptor::from(loaded.config.clone()).accept(stream).await?;
        let visitor = match stream.get_ref().1.peer_certificates() {
            Some([shown, chain @ ..]) => loaded.visitor(shown, chain)?,
            _ => Visitor::default(),
        };
        Ok((Stream::Other(Box::new(stream)), visitor))
    }
}

impl LoadedConfig {
    fn new(from: &ServerTlsFiles) -> Result<LoadedConfig, TlsError> {
        let verifier = |paths: &[&Path], required: bool| {
            let roots = Arc::new(files::authorities(paths)?);
            let builder = WebPkiClientVerifier::builder_with_provider(roots, super::provider());
            let builder = if required { builder } else { builder.allow_unauthenticated() };
            builder.build().map_err(|error| TlsError::new(format!("failed to use the authorities: {error}")))
        };
        let one = |path: &Option<PathBuf>| path.as_ref().map(|path| verifier(&[path], true)).transpose();
        let all: Vec<&Path> =
            [&from.client_ca, &from.peer_ca].into_iter().flatten().map(|p| p.as_path()).collect();
        let builder = ServerConfig::builder_with_provider(super::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(error.to_string()))?;
        let builder = match all.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_verifier(verifier(&all, from.required)?),
        };
        let own = files::certificates(&from.own.certificate)?;
        let names = own.first().map(dns_names).unwrap_or_default();
        let mut config = builder.with_single_cert(own, files::key(&from.own.key)?).map_err(|error| {
            TlsError::new(format!(
                "{} and {} do not match: {error}",
                from.own.certificate.display(),
                from.own.key.display()
            ))
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(LoadedConfig {
            config: Arc::new(config),
            names,
            clients: one(&from.client_ca)?,
            members: one(&from.peer_ca)?,
        })
    }

    /// Finds which of the authorities signed a certificate that the handshake accepted.
    fn visitor(&self, shown: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> io::Result<Visitor> {
        let signed = |verifier: &Option<Arc<dyn ClientCertVerifier>>| {
            let verified = verifier.as_ref().map(|by| by.verify_client_cert(shown, chain, UnixTime::now()));
            matches!(verified, Some(Ok(_)))
        };
        let member = signed(&self.members);
        let name = match signed(&self.clients) {
            true => Some(name(shown).ok_or_else(|| {
                io::Error::other(
                    "a client's certificate has no name: give it a common name, or a DNS or URI name among its \
                     alternative names",
                )
            })?),
            false => None,
        };
        Ok(Visitor { name, member })
    }
}

/// The DNS names in a certificate.
fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let dns = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    dns.collect()
}

/// The common name of a certificate; otherwise its first DNS or URI name.
fn name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let common = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let alternative = || {
        let names = parsed.subject_alternative_name().ok()??;
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
            _ => None,
        })
    };
    common.or_else(alternative).filter(|name| !name.is_empty()).map(str::to_owned)
}
