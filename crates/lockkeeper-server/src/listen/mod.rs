//! The port: gRPC and HTTP side by side.

mod auth_layer;
mod connection_limiter;
mod delivery;
mod direct;
mod gate;
mod gathered;
mod grpc;
mod health;
pub mod http;
mod log_throttle;
mod message_deadline;
mod metered;
mod requests;
mod wire_protocol;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_net::net::{self, Stream};
use lockkeeper_net::tls::{ServerTls, Visitor};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::connection_limiter::{ConnectionLimiter, ConnectionPermit, Kind};
pub(crate) use self::log_throttle::LogThrottle;
pub(crate) use self::requests::MemberProof;
use self::wire_protocol::{WireProtocol, detect};
use crate::api::Api;
use crate::raft::network::PeerService;
use crate::security::hosts::AllowedHosts;
use crate::security::port_security::Members;
use crate::security::{PortSecurity, Who};

/// The one deadline of somebody new, whatever is spoken: to say something, to send the first message or request whole, and
/// to authenticate where callers must.
pub(crate) const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// After this silence the system asks whether the client is still there.
const CLIENT_SILENT_AFTER: Duration = Duration::from_secs(30);
/// After a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{address} is in use by another process: stop that one, or choose another address with --listen")]
    InUse {
        /// The address.
        address: String,
    },
    /// Something else.
    #[error("cannot listen on {address}: {error}. Give an address such as 127.0.0.1:7420 with --listen")]
    Other {
        /// The address.
        address: String,
        /// What the system said.
        error: io::Error,
    },
}

/// Heads of requests, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_gate(data: &[u8]) {
    gate::fuzz(data);
}

/// The messages of a streamed gRPC request, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_gathered(data: &[u8]) {
    gathered::fuzz(data);
}

/// The first bytes of a connection, for `crate::fuzz`: what they begin is clear after 24 of them.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_wire_protocol(data: &[u8]) {
    wire_protocol::fuzz(data);
}

/// An open port.
pub(crate) struct Listener {
    listener: net::Listener,
    address: SocketAddr,
}

impl Listener {
    pub(crate) async fn bind(address: &str) -> Result<Listener, ListenError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { address: address.to_owned() },
            _ => ListenError::Other { address: address.to_owned(), error },
        };
        let listener = net::Listener::bind(address).await.map_err(failed)?;
        let address = listener.address().map_err(failed)?;
        Ok(Listener { listener, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves clients and members until the node stops; then their connections end with it.
    pub(crate) async fn serve(self, api: Api, peers: PeerService, security: PortSecurity) {
        // What comes in by a port is in nobody's name, until it is known who it is.
        let api = api.on_behalf_of(Who::Nobody);
        let router = grpc::router(api.clone(), &peers).merge(http::router(api.clone()));
        self.accept(Port::new(router, api, peers, &security, true), &security).await;
    }

    /// Serves members alone.
    pub(crate) async fn serve_peers(self, peers: PeerService, security: PortSecurity, api: Api) {
        let api = api.on_behalf_of(Who::Nobody);
        let router = tonic::service::Routes::new(peers.server()).into_axum_router();
        self.accept(Port::new(router, api, peers, &security, false), &security).await;
    }

    async fn accept(mut self, port: Port, security: &PortSecurity) {
        let limiter = ConnectionLimiter::new(security.connection_limits);
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok(stream) => {
                    let permit = limiter.enter(address_of(&stream));
                    drop(connections.spawn(connection(stream, port.clone(), permit)));
                }
                Err(error) => {
                    // Too many open files, most likely: those that are open are served on.
                    static THROTTLE: LogThrottle = LogThrottle::new();
                    if let Some(suppressed) = THROTTLE.allow() {
                        tracing::warn!(%error, suppressed, "failed to accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
}

/// What is behind a port.
#[derive(Clone)]
struct Port {
    router: axum::Router,
    api: Api,
    peers: PeerService,
    tls: Option<ServerTls>,
    members: Members,
    hosts: Arc<AllowedHosts>,
    /// Whether our own frames are spoken here.
    frames: bool,
}

impl Port {
    fn new(
        router: axum::Router,
        api: Api,
        peers: PeerService,
        security: &PortSecurity,
        for_clients: bool,
    ) -> Port {
        let tls = if for_clients { &security.clients } else { &security.peers };
        let mut hosts = security.hosts.clone();
        // Read at the start alone: a certificate that is renewed keeps its names.
        hosts.add_addresses(&tls.as_ref().map(ServerTls::names).unwrap_or_default());
        Port {
            router,
            api,
            peers,
            tls: tls.clone(),
            members: security.members,
            hosts: Arc::new(hosts),
            frames: for_clients,
        }
    }
}

fn address_of(stream: &Stream) -> Option<IpAddr> {
    match stream {
        Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
        Stream::Other(_) => None,
    }
}

/// Serves one connection: our own frames, or HTTP with gRPC in it, as its first bytes tell.
async fn connection(stream: Stream, port: Port, mut permit: ConnectionPermit) {
    if let Stream::Tcp(stream) = &stream {
        prepare(stream);
    }
    let Some((stream, visitor, protocol)) = first_bytes(stream, &port, &mut permit).await else { return };
    let turned_away = |why| port.api.shared().metrics.turned_away(why);
    match protocol {
        WireProtocol::Frames if port.frames => match permit.move_to(Kind::Client) {
            Ok(()) => {
                let who = port.api.guard().by_certificate(&visitor);
                direct::serve(stream, port.api.on_behalf_of(who)).await;
            }
            // Closed without a word: whoever is in is served, and a word to each would be work as well.
            Err(why) => turned_away(why),
        },
        WireProtocol::Frames => tracing::debug!("refused a client on the members' port"),
        WireProtocol::Members if port.members.include(&visitor) => {
            // Places of members are for those who have proved that they are.
            let admitted = tokio::select! {
                admitted = port.peers.admit_direct(stream) => admitted,
                _ = &mut permit.evicted => return turned_away("silent"),
            };
            let Some(admitted) = admitted else { return };
            match permit.move_to(Kind::Member) {
                Ok(()) => port.peers.serve_direct(admitted).await,
                Err(why) => turned_away(why),
            }
        }
        WireProtocol::Members => auth_layer::turn_away_stranger(&port.api),
        WireProtocol::Http1 | WireProtocol::Http2 => {
            requests::serve(stream, port, visitor, permit, protocol).await
        }
    }
}

/// The handshake and the first bytes, which have to come soon; none if the connection is to be closed.
async fn first_bytes(
    stream: Stream,
    port: &Port,
    permit: &mut ConnectionPermit,
) -> Option<(Stream, Visitor, WireProtocol)> {
    let first = async {
        let (stream, visitor) = match &port.tls {
            None => (stream, Visitor::default()),
            Some(tls) => tls.accept(stream).await?,
        };
        let (stream, protocol) = detect(stream).await?;
        io::Result::Ok((stream, visitor, protocol))
    };
    tokio::select! {
        first = timeout(FIRST_BYTES_WITHIN, first) => match first {
            Ok(Ok(first)) => return Some(first),
            // Not worth a line for a probe that looks whether the port is open; a wrong certificate is.
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                port.api.shared().metrics.turned_away("handshake");
                static THROTTLE: LogThrottle = LogThrottle::new();
                if let Some(suppressed) = THROTTLE.allow() {
                    tracing::warn!(%error, suppressed, "TLS handshake failed");
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "a connection ended before its first message"),
            Err(_) => tracing::debug!("closed a connection that sent nothing"),
        },
        _ = &mut permit.evicted => port.api.shared().metrics.turned_away("silent"),
    }
    None
}

fn prepare(stream: &TcpStream) {
    // An answer is small and somebody waits for it: it must not wait for more to send.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "failed to set TCP_NODELAY");
    }
    // A client that has gone without a word is noticed by the system, and its connection freed.
    if let Err(error) = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, CLIENT_SILENT_AFTER))
    {
        tracing::debug!(%error, "failed to enable TCP keepalive");
    }
}
