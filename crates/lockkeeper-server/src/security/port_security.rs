//! The ports and what is asked at them, made from the settings when a node starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper_net::tls::{ClientTls, ServerTls, ServerTlsFiles, TlsError, Visitor};

use super::hosts::AllowedHosts;
use super::{ConnectionLimits, Guard, Security};

/// The node cannot be served like this. Each text says what to change.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The root token cannot be used.
    #[error("{0}")]
    RootToken(String),
    /// Two settings do not fit together.
    #[error("{0}")]
    Settings(&'static str),
    /// Others could come in without being asked.
    #[error(
        "{address} can be reached from other machines, and {lacks}. Give --tls-cert and --tls-key with --client-ca or \
         --root-token-file (docs/security.md), listen on 127.0.0.1, or say --insecure if everybody who reaches the \
         port may do everything"
    )]
    Exposed {
        /// Where it would listen.
        address: SocketAddr,
        /// What is missing.
        lacks: &'static str,
    },
    /// Members would not be asked for a certificate.
    #[error(
        "the members of the cell have nothing to show to each other: give --peer-ca, the authority of their \
         certificates, to all of them, or say --insecure if everybody who reaches the port may vote"
    )]
    MembersUnknown,
}

/// Who counts as a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Members {
    /// Everybody who says so.
    Anybody,
    /// Who has a certificate of the members' authority.
    Certified,
    /// Nobody: this is a cell of one.
    Nobody,
}

impl Members {
    /// Whether somebody counts as one.
    pub(crate) fn include(self, visitor: &Visitor) -> bool {
        match self {
            Members::Anybody => true,
            Members::Certified => visitor.member,
            Members::Nobody => false,
        }
    }
}

/// How a node is reached, and reaches others.
#[derive(Debug, Clone)]
pub struct PortSecurity {
    /// On the port for clients.
    pub clients: Option<ServerTls>,
    /// On a port for members alone.
    pub peers: Option<ServerTls>,
    /// To other members.
    pub dialing: Option<ClientTls>,
    /// Who counts as a member.
    pub members: Members,
    /// Tells who asks.
    pub guard: Arc<Guard>,
    /// The host names that requests may carry.
    pub hosts: AllowedHosts,
    /// How many connections are served.
    pub connection_limits: ConnectionLimits,
    insecure: bool,
    asks: bool,
}

impl PortSecurity {
    /// Reads all files.
    pub fn open(security: &Security) -> Result<PortSecurity, SecurityError> {
        let Security { tls, client_ca, peer_ca, peer, .. } = security;
        if tls.is_none() && (client_ca.is_some() || peer_ca.is_some()) {
            return Err(SecurityError::Settings(
                "--client-ca and --peer-ca are for TLS: give the node a certificate with --tls-cert and --tls-key",
            ));
        }
        if peer.is_some() && peer_ca.is_none() {
            return Err(SecurityError::Settings(
                "--peer-cert and --peer-key are shown to members: name their authority with --peer-ca",
            ));
        }
        if security.root_name.is_some() && client_ca.is_none() {
            return Err(SecurityError::Settings(
                "--root-name is the name in a client's certificate: name the clients' authority with --client-ca",
            ));
        }
        if let (Some(clients), Some(peers)) = (client_ca, peer_ca)
            && same_content(clients, peers)
        {
            return Err(SecurityError::Settings(
                "--client-ca and --peer-ca are the same authority: every client could vote; use one for each",
            ));
        }
        let guard = Guard::new(security)?;
        let tokens = security.root_token_file.is_some();
        let serve = |client_ca: &Option<PathBuf>, own: &Option<super::KeyPair>, required: bool| {
            own.as_ref()
                .map(|own| {
                    ServerTls::new(ServerTlsFiles {
                        own: own.clone(),
                        client_ca: client_ca.clone(),
                        peer_ca: peer_ca.clone(),
                        required,
                    })
                })
                .transpose()
        };
        let shown = peer.as_ref().or(tls.as_ref());
        let dialing = match (peer_ca, shown) {
            (Some(ca), Some(own)) => Some(ClientTls::new(ca.clone(), Some(own.clone()))?),
            _ => None,
        };
        let asks = client_ca.is_some() || tokens;
        let members = match (peer_ca.is_some(), security.insecure || !asks) {
            (true, _) => Members::Certified,
            (false, true) => Members::Anybody,
            (false, false) => Members::Nobody,
        };
        Ok(PortSecurity {
            clients: serve(client_ca, tls, client_ca.is_some() && !tokens)?,
            peers: serve(&None, &shown.cloned(), peer_ca.is_some())?,
            dialing,
            members,
            guard: Arc::new(guard),
            hosts: AllowedHosts::new(&security.allowed_hosts, asks),
            connection_limits: security.connection_limits,
            insecure: security.insecure,
            asks,
        })
    }

    /// Whether clients may be served at this address.
    pub(crate) fn may_serve(&self, address: SocketAddr) -> Result<(), SecurityError> {
        if address.ip().is_loopback() || self.insecure {
            return Ok(());
        }
        let lacks = match (&self.clients, self.asks) {
            (None, true) => "everybody on the way could read along",
            (None, false) => "nobody is asked who they are",
            (Some(_), false) => "nobody is asked who they are",
            (Some(_), true) => return Ok(()),
        };
        Err(SecurityError::Exposed { address, lacks })
    }

    /// Whether members may be served at this address.
    pub(crate) fn may_serve_members(&self, address: SocketAddr) -> Result<(), SecurityError> {
        match self.members {
            Members::Anybody if !address.ip().is_loopback() && !self.insecure => {
                Err(SecurityError::Exposed { address, lacks: "members are not asked for a certificate" })
            }
            _ => Ok(()),
        }
    }

    /// Whether a cell of so many can be formed.
    pub(crate) fn may_have_members(&self, count: usize) -> Result<(), SecurityError> {
        let cannot = self.members == Members::Nobody || self.clients.is_some() && self.dialing.is_none();
        match cannot && count > 1 {
            true => Err(SecurityError::MembersUnknown),
            false => Ok(()),
        }
    }
}

fn same_content(one: &PathBuf, other: &PathBuf) -> bool {
    one == other || matches!((std::fs::read(one), std::fs::read(other)), (Ok(one), Ok(other)) if one == other)
}
