//! Security of the ports: TLS and authentication, built from the settings when a node starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper_net::tls::{ClientTls, ServerTls, ServerTlsFiles, TlsError, Visitor};

use super::hosts::AllowedHosts;
use super::{Authenticator, ConnectionLimits, Security};
use crate::data_dir::private_files;

/// The security settings cannot be used. Each message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The root token cannot be used.
    #[error("{0}")]
    RootToken(String),
    /// A key is not secret.
    #[error(
        "every user of this machine can read the key {key}: restrict it with chmod 600 {key}, or pass \
         --allow-insecure-files if its file system has no modes",
        key = .0.display()
    )]
    ReadableKey(PathBuf),
    /// Settings contradict each other.
    #[error("{0}")]
    Settings(&'static str),
    /// Other machines could connect without authentication or encryption.
    #[error(
        "{address} can be reached from other machines, and {lacks}. Set --tls-cert and --tls-key with --client-ca or \
         --root-token-file (docs/security.md), listen on 127.0.0.1, or pass --insecure if everyone who can reach the \
         port may do everything"
    )]
    Exposed {
        /// The address to listen on.
        address: SocketAddr,
        /// The missing protection.
        lacks: &'static str,
    },
    /// Members would not authenticate each other.
    #[error(
        "the members of the cell cannot authenticate each other: set --peer-ca, the CA of their certificates, on all of \
         them, or pass --insecure if everyone who can reach the port may vote"
    )]
    MembersUnknown,
}

/// Which connections count as those of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberPolicy {
    /// All that claim to be.
    Anyone,
    /// Those with a certificate of the members' CA.
    Certified,
    /// None: this is a cell of one node.
    NoOne,
}

impl MemberPolicy {
    /// Whether a connection counts as a member's.
    pub(crate) fn admits(self, visitor: &Visitor) -> bool {
        match self {
            MemberPolicy::Anyone => true,
            MemberPolicy::Certified => visitor.member,
            MemberPolicy::NoOne => false,
        }
    }
}

/// The security of incoming and outgoing connections of a node.
#[derive(Debug, Clone)]
pub struct PortSecurity {
    /// TLS on the port for clients.
    pub clients: Option<ServerTls>,
    /// TLS on a separate port for members.
    pub peers: Option<ServerTls>,
    /// TLS to other members.
    pub dialing: Option<ClientTls>,
    /// Which connections count as those of members.
    pub members: MemberPolicy,
    /// Authenticates callers.
    pub authenticator: Arc<Authenticator>,
    /// The host names that requests may name.
    pub hosts: AllowedHosts,
    /// Limits on the number of connections.
    pub connection_limits: ConnectionLimits,
    insecure: bool,
    authenticates: bool,
}

impl PortSecurity {
    /// Reads all files and checks the settings.
    pub fn open(security: &Security) -> Result<PortSecurity, SecurityError> {
        let Security { tls, client_ca, peer_ca, peer, .. } = security;
        if tls.is_none() && (client_ca.is_some() || peer_ca.is_some()) {
            return Err(SecurityError::Settings(
                "--client-ca and --peer-ca require TLS: set the node's certificate with --tls-cert and --tls-key",
            ));
        }
        if peer.is_some() && peer_ca.is_none() {
            return Err(SecurityError::Settings(
                "--peer-cert and --peer-key are presented to members: set their CA with --peer-ca",
            ));
        }
        if security.root_name.is_some() && client_ca.is_none() {
            return Err(SecurityError::Settings(
                "--root-name is the name in a client certificate: set the CA of clients with --client-ca",
            ));
        }
        if let (Some(clients), Some(peers)) = (client_ca, peer_ca)
            && same_content(clients, peers)
        {
            return Err(SecurityError::Settings(
                "--client-ca and --peer-ca are the same CA, so every client could vote: use a separate CA for each",
            ));
        }
        // Its group may read a key: Kubernetes mounts secrets so.
        let is_open = |own: &&super::KeyPair| private_files::is_world_readable(&own.key).unwrap_or(false);
        if let Some(own) = tls.iter().chain(peer).find(is_open)
            && !security.allow_insecure_files
        {
            return Err(SecurityError::ReadableKey(own.key.clone()));
        }
        let authenticator = Authenticator::new(security)?;
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
        let authenticates = client_ca.is_some() || tokens;
        let members = match (peer_ca.is_some(), security.insecure || !authenticates) {
            (true, _) => MemberPolicy::Certified,
            (false, true) => MemberPolicy::Anyone,
            (false, false) => MemberPolicy::NoOne,
        };
        Ok(PortSecurity {
            clients: serve(client_ca, tls, client_ca.is_some() && !tokens)?,
            peers: serve(&None, &shown.cloned(), peer_ca.is_some())?,
            dialing,
            members,
            authenticator: Arc::new(authenticator),
            hosts: AllowedHosts::new(&security.allowed_hosts, authenticates),
            connection_limits: security.connection_limits,
            insecure: security.insecure,
            authenticates,
        })
    }

    /// Checks that clients may be served at this address.
    pub(crate) fn may_serve(&self, address: SocketAddr) -> Result<(), SecurityError> {
        if address.ip().is_loopback() || self.insecure {
            return Ok(());
        }
        let lacks = match (&self.clients, self.authenticates) {
            (None, true) => "connections are not encrypted",
            (None, false) => "callers are not authenticated",
            (Some(_), false) => "callers are not authenticated",
            (Some(_), true) => return Ok(()),
        };
        Err(SecurityError::Exposed { address, lacks })
    }

    /// Checks that members may be served at this address.
    pub(crate) fn may_serve_members(&self, address: SocketAddr) -> Result<(), SecurityError> {
        match self.members {
            MemberPolicy::Anyone if !address.ip().is_loopback() && !self.insecure => {
                Err(SecurityError::Exposed { address, lacks: "members are not authenticated" })
            }
            _ => Ok(()),
        }
    }

    /// Checks that a cell of this many members can be formed.
    pub(crate) fn may_have_members(&self, count: usize) -> Result<(), SecurityError> {
        let cannot = self.members == MemberPolicy::NoOne || self.clients.is_some() && self.dialing.is_none();
        match cannot && count > 1 {
            true => Err(SecurityError::MembersUnknown),
            false => Ok(()),
        }
    }
}

fn same_content(one: &PathBuf, other: &PathBuf) -> bool {
    one == other || matches!((std::fs::read(one), std::fs::read(other)), (Ok(one), Ok(other)) if one == other)
}
