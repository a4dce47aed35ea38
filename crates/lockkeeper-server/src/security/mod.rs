//! Who may come in, and what they may do. docs/security.md tells the model.

pub mod admission;
pub mod disclosure;
pub mod guard;
pub mod hosts;
pub mod port_security;
mod rates;
pub mod tokens;
pub mod who;

pub use guard::Guard;
pub use port_security::{PortSecurity, SecurityError};
pub(crate) use rates::Rates;
pub use who::Who;

use std::path::PathBuf;

pub use lockkeeper_net::tls::KeyPair;

/// The settings. The default is for a node that only its own machine can reach: no TLS, nobody is asked who they are.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// The node's certificate and key: clients are served under TLS.
    pub tls: Option<KeyPair>,
    /// The authority of clients' certificates: the name in a certificate is an identity.
    pub client_ca: Option<PathBuf>,
    /// The authority of the members' certificates: only who has one can vote and append.
    pub peer_ca: Option<PathBuf>,
    /// What this node shows to the other members, if not `tls`.
    pub peer: Option<KeyPair>,
    /// A file with the token of the identity that may do everything.
    pub root_token_file: Option<PathBuf>,
    /// Use that file although everybody on the machine may read it: for file systems without modes.
    pub root_token_readable: bool,
    /// The name in the certificate of an identity that may do everything.
    pub root_name: Option<String>,
    /// Serve others than the own machine, although they are not asked who they are or everybody can listen in.
    pub insecure: bool,
    /// Host names that requests may carry in addition, where callers are not authenticated; `*` allows every name.
    pub allowed_hosts: Vec<String>,
    /// How many connections are served.
    pub connection_limits: ConnectionLimits,
}

/// How many connections are served at once.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// In all.
    pub connections_max: usize,
    /// From one address.
    pub per_address_max: usize,
    /// That have not said anything yet, or have not finished their handshake.
    pub silent_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { connections_max: 20_000, per_address_max: 15_000, silent_max: 4_096 }
    }
}
