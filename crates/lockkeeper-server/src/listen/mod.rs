//! The ports of a node: our own frames, HTTP and gRPC side by side.

mod auth_layer;
mod calls;
mod connection_limiter;
mod delivery;
mod direct;
mod grpc;
mod health;
pub mod http;
mod http_connection;
mod message_deadline;
mod metered;
mod reassembly;
mod request_filter;
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
use self::wire_protocol::{WireProtocol, detect};
use crate::api::Api;
use crate::limits::arrivals::{Arrivals, CountedStream};
use crate::limits::budget::ConnectionBudget;
use crate::limits::deadlines::FIRST_BYTES_WITHIN;
use crate::limits::log_throttle::LogThrottle;
use crate::raft::network::PeerService;
use crate::security::hosts::AllowedHosts;
use crate::security::port_security::MemberPolicy;
use crate::security::{PortSecurity, Principal};

/// Idle time before the first TCP keepalive probe.
const CLIENT_SILENT_AFTER: Duration = Duration::from_secs(30);
/// Pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Failure to listen on an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{address} is in use by another process: stop that one, or choose another address with --listen")]
    InUse {
        /// The address.
        address: String,
    },
    /// The operating system refused for another reason.
    #[error("cannot listen on {address}: {error}. Set an address such as 127.0.0.1:7420 with --listen")]
    Other {
        /// The address.
        address: String,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// Heads of requests, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_request_filter(data: &[u8]) {
    request_filter::fuzz(data);
}

/// Whether the request filter lets a head pass on a node that serves every host name, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_passes_filter(head: &axum::http::request::Parts, api: &Api) -> bool {
    request_filter::check(head, &AllowedHosts::new(&["*".to_owned()], false), api).is_ok()
}

/// The messages of a streamed gRPC request, for `crate::fuzz`.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_reassembly(data: &[u8]) {
    reassembly::fuzz(data);
}

/// The first bytes of a connection, for `crate::fuzz`. 24 bytes always identify the protocol.
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

    /// Serves clients and members until the node stops. Their connections end with it.
    pub(crate) async fn serve(self, api: Api, peers: PeerService, security: PortSecurity) {
        // Callers are anonymous until they are authenticated.
        let api = api.on_behalf_of(Principal::Anonymous);
        let router = grpc::router(api.clone(), &peers).merge(http::router(api.clone()));
        self.accept(Port::new(router, api, peers, &security, true), &security).await;
    }

    /// Serves members only.
    pub(crate) async fn serve_peers(self, peers: PeerService, security: PortSecurity, api: Api) {
        let api = api.on_behalf_of(Principal::Anonymous);
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
                    // Most likely too many open files: existing connections are still served.
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

/// The services behind a port.
#[derive(Clone)]
struct Port {
    router: axum::Router,
    api: Api,
    peers: PeerService,
    tls: Option<ServerTls>,
    members: MemberPolicy,
    hosts: Arc<AllowedHosts>,
    /// Whether clients may use our own frames here.
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
        // Only read at startup: a renewed certificate keeps its names.
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

/// Serves one connection. Its first bytes select the protocol: our own frames, or HTTP including gRPC.
async fn connection(stream: Stream, port: Port, mut permit: ConnectionPermit) {
    if let Stream::Tcp(stream) = &stream {
        prepare(stream);
    }
    let arrivals = Arrivals::default();
    let Some((stream, visitor, protocol)) = first_bytes(stream, &port, &mut permit, &arrivals).await else {
        return;
    };
    let budget = ConnectionBudget::with(arrivals);
    let turned_away = |why| port.api.shared().metrics.turned_away(why);
    match protocol {
        WireProtocol::Frames if port.frames => match permit.move_to(Kind::Client) {
            Ok(()) => {
                let principal = port.api.authenticator().by_certificate(&visitor);
                direct::serve(stream, port.api.on_behalf_of(principal), budget).await;
            }
            // Closed without an answer, which would cost work for each refused connection.
            Err(why) => turned_away(why),
        },
        WireProtocol::Frames => tracing::debug!("refused a client on the members' port"),
        WireProtocol::Members if port.members.admits(&visitor) => {
            // Its first message has limits of its own, in bytes and time.
            budget.arrivals.stop();
            // A member's slot is only taken after the proof of membership.
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
        WireProtocol::Members => auth_layer::refuse_non_member(&port.api),
        WireProtocol::Http1 | WireProtocol::Http2 => {
            http_connection::serve(stream, port, visitor, permit, protocol, budget).await
        }
    }
}

/// Completes the TLS handshake and detects the protocol within a deadline. `None` means to close the connection.
async fn first_bytes(
    stream: Stream,
    port: &Port,
    permit: &mut ConnectionPermit,
    arrivals: &Arrivals,
) -> Option<(Stream, Visitor, WireProtocol)> {
    let first = async {
        let (stream, visitor) = match &port.tls {
            None => (stream, Visitor::default()),
            Some(tls) => {
                // Below TLS, because an incomplete record is kept as well.
                let counted = CountedStream::new(stream, arrivals.clone());
                tls.accept(Stream::Other(Box::new(counted))).await?
            }
        };
        arrivals.start(port.api.budget_of(&port.api.authenticator().by_certificate(&visitor)));
        let (stream, protocol) = detect(stream).await?;
        io::Result::Ok((stream, visitor, protocol))
    };
    tokio::select! {
        first = timeout(FIRST_BYTES_WITHIN, first) => match first {
            Ok(Ok(first)) => return Some(first),
            // Logged for a bad certificate, but not for a probe that only checks whether the port is open.
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
    // Answers are small and latency matters: do not delay them for more data.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "failed to set TCP_NODELAY");
    }
    // Lets the system detect clients that disappeared without closing the connection.
    if let Err(error) = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, CLIENT_SILENT_AFTER))
    {
        tracing::debug!(%error, "failed to enable TCP keepalive");
    }
}
