//! Files with certificates, keys and authorities.

use std::path::{Path, PathBuf};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate with its chain, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// PEM file: the certificate first, then the chain to the authority.
    pub certificate: PathBuf,
    /// PEM file.
    pub key: PathBuf,
}

/// Error of setting up TLS with these files. The message says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError {
    what: String,
}

impl TlsError {
    pub(crate) fn new(what: impl Into<String>) -> TlsError {
        TlsError { what: what.into() }
    }
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for TlsError {}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        TlsError::new(format!(
            "failed to read a certificate from {}: {error}; provide a file in PEM format",
            path.display()
        ))
    };
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(|error| unreadable(&error))?
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(&error))?;
    match found.is_empty() {
        true => Err(unreadable(&"it contains none")),
        false => Ok(found),
    }
}

pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        TlsError::new(format!(
            "failed to read a key from {}: {error}; provide a file in PEM format without a passphrase that this user can \
             read",
            path.display()
        ))
    })
}

pub(super) fn authorities(paths: &[&Path]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for path in paths {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| {
                TlsError::new(format!(
                    "{} contains a certificate that is not a CA certificate: {error}",
                    path.display()
                ))
            })?;
        }
    }
    Ok(roots)
}
