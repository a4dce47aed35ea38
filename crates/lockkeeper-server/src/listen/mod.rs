//! The port: gRPC and HTTP side by side.

mod crowd;
mod delivery;
mod direct;
mod grpc;
mod health;
pub mod http;
mod opening;
mod prompt;
mod reception;
mod seldom;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use lockkeeper_proto::net::{self, Stream};
use lockkeeper_proto::tls::{ServerTls, Visitor};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::crowd::{Crowd, Seat};
use self::delivery::{Sending, Unsent};
use self::opening::{Opening, opening};
use self::reception::Reception;
use self::seldom::Seldom;
use crate::calls::Calls;
use crate::raft::network::PeerService;
use crate::security::doors::Members;
use crate::security::{Doors, Who};

/// A client must say something, and finish its HTTP headers, within this time.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// How often a silent HTTP/2 client is asked whether it is still there.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
/// After this silence the system asks whether the client is still there.
const CLIENT_SILENT_AFTER: Duration = Duration::from_secs(30);
/// What may be under way to us on one HTTP/2 stream or connection: entries and snapshots of members come in large
/// messages.
const WINDOW_BYTES: u32 = 2 << 20;
/// The largest frame of HTTP/2 that others may send: the entry of a busy node goes in one, and so in one write.
const FRAME_BYTES: u32 = 64 << 10;
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
    pub(crate) async fn serve(self, calls: Calls, peers: PeerService, doors: Doors) {
        // What comes in by a port is in nobody's name, until it is known who it is.
        let calls = calls.on_behalf_of(Who::Nobody);
        let router = grpc::router(calls.clone(), &peers).merge(http::router(calls.clone()));
        let tls = doors.clients.clone();
        self.accept(
            Port { router, calls, peers, tls, members: doors.members, frames: true, seldom: Arc::default() },
            &doors,
        )
        .await;
    }

    /// Serves members alone.
    pub(crate) async fn serve_peers(self, peers: PeerService, doors: Doors, calls: Calls) {
        let calls = calls.on_behalf_of(Who::Nobody);
        let router = tonic::service::Routes::new(peers.server()).into_axum_router();
        let tls = doors.peers.clone();
        self.accept(
            Port { router, calls, peers, tls, members: doors.members, frames: false, seldom: Arc::default() },
            &doors,
        )
        .await;
    }

    async fn accept(mut self, port: Port, doors: &Doors) {
        let crowd = Crowd::new(doors.crowd);
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok(stream) => match crowd.enter(address_of(&stream)) {
                    Ok(seat) => drop(connections.spawn(connection(stream, port.clone(), seat))),
                    // Closed without a word: whoever is in is served, and a word to each would be work as well.
                    Err(why) => port.calls.shared().metrics.turned_away(why),
                },
                Err(error) => {
                    // Too many open files, most likely: those that are open are served on.
                    tracing::warn!(%error, "a connection could not be accepted");
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
    calls: Calls,
    peers: PeerService,
    tls: Option<ServerTls>,
    members: Members,
    /// Whether our own frames are spoken here.
    frames: bool,
    seldom: Arc<Seldom>,
}

fn address_of(stream: &Stream) -> Option<IpAddr> {
    match stream {
        Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
        Stream::Other(_) => None,
    }
}

/// Serves one connection: our own frames, or HTTP with gRPC in it, as its first bytes tell.
async fn connection(stream: Stream, port: Port, mut seat: Seat) {
    if let Stream::Tcp(stream) = &stream {
        prepare(stream);
    }
    let first = async {
        let (stream, visitor) = match &port.tls {
            None => (stream, Visitor::default()),
            Some(tls) => tls.accept(stream).await?,
        };
        let (stream, opening) = opening(stream).await?;
        io::Result::Ok((stream, visitor, opening))
    };
    let (stream, visitor, opening) = tokio::select! {
        first = timeout(FIRST_BYTES_WITHIN, first) => match first {
            Ok(Ok(first)) => first,
            Ok(Err(error)) => {
                // Not worth a line for a probe that looks whether the port is open; a wrong certificate is.
                match error.kind() {
                    io::ErrorKind::InvalidData => {
                        port.calls.shared().metrics.turned_away("handshake");
                        if port.seldom.now() {
                            tracing::warn!(%error, "a handshake has failed");
                        }
                    }
                    _ => tracing::debug!(%error, "a connection ended before its first byte"),
                }
                return;
            }
            Err(_) => {
                tracing::debug!("a connection sent nothing and was closed");
                return;
            }
        },
        _ = &mut seat.pushed_out => {
            port.calls.shared().metrics.turned_away("unheard");
            return;
        }
    };
    seat.heard();
    let builder = auto::Builder::new(TokioExecutor::new());
    // Not left to the builder to find out: it would wait for the rest of a preface for as long as it takes.
    let mut builder = match opening {
        Opening::Frames if port.frames => {
            let who = port.calls.guard().by_certificate(&visitor);
            return direct::serve(stream, port.calls.on_behalf_of(who)).await;
        }
        Opening::Frames => return tracing::debug!("a client came to the port of the members"),
        Opening::Entries if port.members.include(&visitor) => return port.peers.serve_direct(stream).await,
        Opening::Entries => return reception::turn_away_stranger(&port.calls, &port.seldom),
        Opening::Http2 => builder.http2_only(),
        Opening::Http1 => builder.http1_only(),
    };
    builder.http1().timer(TokioTimer::new()).header_read_timeout(FIRST_BYTES_WITHIN);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING_EVERY)
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let Port { router, calls, members, seldom, .. } = port;
    let unsent = Unsent::default();
    let stream = Sending::new(stream, unsent.clone());
    let reception = Reception { router, calls, visitor: Arc::new(visitor), members, seldom, unsent };
    let service = TowerToHyperService::new(reception);
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection ended");
    }
}

fn prepare(stream: &TcpStream) {
    // An answer is small and somebody waits for it: it must not wait for more to send.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    // A client that has gone without a word is noticed by the system, and its connection freed.
    if let Err(error) = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, CLIENT_SILENT_AFTER))
    {
        tracing::debug!(%error, "a connection is not probed");
    }
}
