//! Authentication and authorization. docs/security.md explains the model.

pub mod admission;
pub mod authenticator;
pub mod disclosure;
pub mod hosts;
pub mod port_security;
pub mod principal;
mod rates;
pub mod tokens;

pub use authenticator::Authenticator;
pub use port_security::{PortSecurity, SecurityError};
pub use principal::Principal;
pub(crate) use rates::Rates;

use std::path::PathBuf;

pub use lockkeeper_net::tls::KeyPair;

use crate::data_dir::InsecureFiles;

/// The security settings. The default is for a node that only its own machine can reach: no TLS and no authentication.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// The node's certificate and key. With them, clients are served over TLS.
    pub tls: Option<KeyPair>,
    /// The CA of client certificates. The name in a client certificate is an identity.
    pub client_ca: Option<PathBuf>,
    /// The CA of member certificates. Only nodes with one can vote and append.
    pub peer_ca: Option<PathBuf>,
    /// The certificate and key that this node presents to other members, if not `tls`.
    pub peer: Option<KeyPair>,
    /// A file with the access token of root.
    pub root_token_file: Option<PathBuf>,
    /// Accept that file even if it is world-readable, for file systems without permissions.
    pub root_token_readable: bool,
    /// Accept a data folder, keys and a root token that other users can read or change, for file systems without owners or
    /// modes.
    pub allow_insecure_files: bool,
    /// The name in the client certificate of root.
    pub root_name: Option<String>,
    /// Serve other machines even without authentication or encryption.
    pub insecure: bool,
    /// Additional host names that requests may name if authentication is off; `*` allows every name.
    pub allowed_hosts: Vec<String>,
    /// Limits on the number of connections.
    pub connection_limits: ConnectionLimits,
}

impl Security {
    pub(crate) fn insecure_files(&self) -> InsecureFiles {
        match self.allow_insecure_files {
            true => InsecureFiles::Allowed,
            false => InsecureFiles::Refused,
        }
    }
}

/// Limits on the number of concurrent connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Total number.
    pub connections_max: usize,
    /// Number from one IP address.
    pub per_address_max: usize,
    /// Number of those that have sent nothing yet, or have not finished their handshake.
    pub silent_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { connections_max: 20_000, per_address_max: 15_000, silent_max: 4_096 }
    }
}
