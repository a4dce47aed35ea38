//! Serves a connection with HTTP/1 or HTTP/2, including gRPC.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use lockkeeper_net::net::Stream;
use lockkeeper_net::tls::Visitor;
use tokio::sync::oneshot;

use super::Port;
use super::auth_layer::AuthLayer;
use super::connection_limiter::{ConnectionPermit, Kind};
use super::delivery::{DeliveryTracker, UnsentGrants};
use super::wire_protocol::WireProtocol;
use crate::api::Api;
use crate::limits::arrivals::{Arrivals, CountedStream};
use crate::limits::budget::ConnectionBudget;
use crate::limits::deadlines::FIRST_BYTES_WITHIN;
use crate::security::port_security::MemberPolicy;

/// Interval of pings on an idle HTTP/2 connection.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
/// Flow-control window of an HTTP/2 stream and connection: bytes that hyper buffers until they are read. It cannot be raised
/// later, so it is the protocol's smallest one: anybody can fill it. Counted in the byte budget while a request is not read.
pub(super) const WINDOW_BYTES: u32 = 65_535;
/// The window on the members' own port, for snapshots over long distances.
const MEMBERS_PORT_WINDOW_BYTES: u32 = 512 << 10;
/// The window for members with a certificate.
const MEMBERS_WINDOW_BYTES: u32 = 4 << 20;
/// Largest HTTP/2 frame that clients may send: the protocol's smallest limit. An incomplete frame is kept in memory.
const FRAME_BYTES: u32 = 16 << 10;
/// The same for members.
const MEMBERS_FRAME_BYTES: u32 = 64 << 10;
/// Below this number of unsent bytes of an answer, HTTP/2 takes more of it. Small, because they are not counted at the end of
/// the answer (`metered.rs`).
const SEND_BUFFER_BYTES: usize = 1 << 10;
/// Concurrent requests on one HTTP/2 connection, including waiting acquires.
const STREAMS_MAX: u32 = 200;
/// Largest head of a request. Access tokens have less than 100 bytes; the rest is for the headers of proxies in front. It is also
/// the size of the buffer of an HTTP/1 connection, which anybody can fill.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How often to check whether access control was turned on during a connection.
const ENFORCEMENT_CHECKED_EVERY: Duration = Duration::from_secs(60);
/// Time for a closing connection to finish its pending answers.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Lifetime of an overflow connection.
const OVERFLOW_FOR: Duration = Duration::from_secs(5);

/// The state of a connection, updated by its requests.
#[derive(Debug)]
pub(super) struct ConnectionState {
    permit: Mutex<ConnectionPermit>,
    /// Whether a request has arrived.
    has_request: AtomicBool,
    /// Whether a request was authenticated.
    authenticated: AtomicBool,
}

/// Why a connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    /// It has sent no request in time, or is an overflow connection whose lifetime is over or that was evicted.
    Expired,
    /// No request was authenticated although callers must be. Pending requests are still answered.
    Unauthenticated,
}

impl ConnectionState {
    fn new(permit: ConnectionPermit) -> ConnectionState {
        ConnectionState {
            permit: Mutex::new(permit),
            has_request: AtomicBool::new(false),
            authenticated: AtomicBool::new(false),
        }
    }

    pub(super) fn permit(&self) -> MutexGuard<'_, ConnectionPermit> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request.
    pub(super) fn note_request(&self, is_authenticated: bool) {
        if !self.has_request.swap(true, Ordering::Relaxed) {
            self.permit().note_request();
        }
        if is_authenticated {
            self.authenticated.store(true, Ordering::Relaxed);
        }
    }

    /// Marks the connection as a member's. If all member slots are taken, it keeps its kind.
    pub(super) fn note_member(&self) {
        self.authenticated.store(true, Ordering::Relaxed);
        if let Err(why) = self.permit().move_to(Kind::Member) {
            tracing::debug!(why, "failed to count a connection as a member's");
        }
    }

    /// Whether the connection is a member's.
    pub(super) fn is_members(&self) -> bool {
        self.permit().kind() == Kind::Member
    }

    /// The receiver of the eviction of an overflow connection.
    fn eviction(&self) -> Option<oneshot::Receiver<()>> {
        let mut permit = self.permit();
        let (_, unused) = oneshot::channel();
        (permit.kind() == Kind::Overflow).then(|| std::mem::replace(&mut permit.evicted, unused))
    }

    /// Resolves when the connection must be closed: it has no request, no slot of its own, or no authentication although
    /// callers must authenticate.
    async fn close_due(&self, api: &Api) -> CloseReason {
        if let Some(evicted) = self.eviction() {
            // Resolves early if the connection was evicted or promoted.
            let is_early = tokio::time::timeout(OVERFLOW_FOR, evicted).await.is_ok();
            if self.permit().kind() == Kind::Overflow {
                if is_early {
                    api.shared().metrics.turned_away("connections");
                }
                return CloseReason::Expired;
            }
        }
        tokio::time::sleep(FIRST_BYTES_WITHIN).await;
        if !self.has_request.load(Ordering::Relaxed) {
            return CloseReason::Expired;
        }
        while !self.authenticated.load(Ordering::Relaxed) {
            if api.is_enforced() {
                return CloseReason::Unauthenticated;
            }
            tokio::time::sleep(ENFORCEMENT_CHECKED_EVERY).await;
        }
        std::future::pending().await
    }
}

/// Returns the settings of a connection with this protocol.
fn builder(port: &Port, visitor: &Visitor, protocol: WireProtocol) -> auto::Builder<TokioExecutor> {
    let (window, frame) = match port.members {
        MemberPolicy::Certified if visitor.member => (MEMBERS_WINDOW_BYTES, MEMBERS_FRAME_BYTES),
        _ if !port.frames => (MEMBERS_PORT_WINDOW_BYTES, MEMBERS_FRAME_BYTES),
        _ => (WINDOW_BYTES, FRAME_BYTES),
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Set explicitly, because the builder would wait for the rest of a preface without a time limit.
    builder = match protocol {
        WireProtocol::Http2 => builder.http2_only(),
        _ => builder.http1_only(),
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(FIRST_BYTES_WITHIN)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING_EVERY)
        .max_frame_size(frame)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window);
    builder
}

/// Serves requests until one side ends.
pub(super) async fn serve(
    stream: Stream,
    port: Port,
    visitor: Visitor,
    mut permit: ConnectionPermit,
    protocol: WireProtocol,
    budget: ConnectionBudget,
) {
    if permit.move_to(Kind::Client).is_err()
        && let Err(why) = permit.move_to(Kind::Overflow)
    {
        return port.api.shared().metrics.turned_away(why);
    }
    let builder = builder(&port, &visitor, protocol);
    // With TLS, it is counted below it.
    let counted = if port.tls.is_none() { budget.arrivals.clone() } else { Arrivals::default() };
    let Port { router, api, members, hosts, .. } = port;
    let state = Arc::new(ConnectionState::new(permit));
    let visitor = Arc::new(visitor);
    let unsent = UnsentGrants::default();
    let stream = DeliveryTracker::new(CountedStream::new(stream, counted), unsent.clone());
    let auth_layer = AuthLayer {
        router,
        api: api.clone(),
        visitor,
        members,
        hosts,
        state: state.clone(),
        unsent,
        budget: budget.clone(),
    };
    let service = TowerToHyperService::new(auth_layer);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let reason = tokio::select! {
        served = connection.as_mut() => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended with an error");
            }
            return;
        }
        () = budget.stalled() => {
            return tracing::debug!("closed a connection: the client does not read its answers");
        }
        reason = state.close_due(&api) => reason,
    };
    tracing::debug!(?reason, "closing a connection");
    if reason == CloseReason::Unauthenticated {
        connection.as_mut().graceful_shutdown();
        let ended = tokio::time::timeout(LAST_ANSWERS_WITHIN, connection).await;
        drop(ended);
    }
}
