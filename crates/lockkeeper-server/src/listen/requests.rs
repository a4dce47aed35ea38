//! A connection on which HTTP is spoken, version 1 or 2, with gRPC in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use lockkeeper_net::net::Stream;
use lockkeeper_net::tls::Visitor;

use super::auth_layer::AuthLayer;
use super::connection_limiter::{ConnectionPermit, Kind};
use super::delivery::{Sending, Unsent};
use super::wire_protocol::WireProtocol;
use super::{FIRST_BYTES_WITHIN, Port};
use crate::api::Api;
use crate::budget::ConnectionBudget;
use crate::security::port_security::Members;

/// How often a silent HTTP/2 client is asked whether it is still there.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
/// What may be under way to us on one HTTP/2 stream or connection, and waits in the library until it is read. Not counted in
/// the byte budget.
const WINDOW_BYTES: u32 = 512 << 10;
/// The same for members that are known by their certificate or by their port: snapshots may have a long way.
const MEMBERS_WINDOW_BYTES: u32 = 4 << 20;
/// The largest frame of HTTP/2 that others may send: the entry of a busy node goes in one, and so in one write.
const FRAME_BYTES: u32 = 64 << 10;
/// What hyper keeps of each answer, beside what the budget counts.
const SEND_BUFFER_BYTES: usize = 16 << 10;
/// Requests that are under way on one HTTP/2 connection; waiting acquires are among them.
const STREAMS_MAX: u32 = 200;
/// What is kept of one HTTP/1 connection: its head must fit into it.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// Access control may be turned on while a connection lasts.
const ENFORCEMENT_CHECKED_EVERY: Duration = Duration::from_secs(60);
/// What a connection that is to end may take for what it was asked already.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How long a connection lasts that has no place among the clients.
const OVERFLOW_FOR: Duration = Duration::from_secs(5);

/// What is known of a connection by the requests on it.
#[derive(Debug)]
pub(super) struct ConnectionState {
    permit: Mutex<ConnectionPermit>,
    /// Whether there was a request.
    asked: AtomicBool,
    /// Whether a request has shown who the caller is.
    authenticated: AtomicBool,
}

/// Why a connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Late {
    /// It has sent no request, or has had the time of those that have no place of their own.
    Now,
    /// Nobody has authenticated on it, where callers must. What it has asked for already is answered.
    Unauthenticated,
}

/// Given to the members' service with each request: says that the request was a member's.
#[derive(Debug, Clone)]
pub(crate) struct MemberProof(Arc<ConnectionState>);

impl MemberProof {
    pub(super) fn new(state: Arc<ConnectionState>) -> MemberProof {
        MemberProof(state)
    }

    /// The connection is a member's from now on. If all places of members are taken, it stays where it is.
    pub(crate) fn accept(&self) {
        self.0.authenticated.store(true, Ordering::Relaxed);
        if let Err(why) = self.0.permit().move_to(Kind::Member) {
            tracing::debug!(why, "a member's connection is not counted as one");
        }
    }
}

impl ConnectionState {
    fn new(permit: ConnectionPermit) -> ConnectionState {
        ConnectionState {
            permit: Mutex::new(permit),
            asked: AtomicBool::new(false),
            authenticated: AtomicBool::new(false),
        }
    }

    pub(super) fn permit(&self) -> MutexGuard<'_, ConnectionPermit> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There was a request.
    pub(super) fn note_request(&self, is_authenticated: bool) {
        self.asked.store(true, Ordering::Relaxed);
        if is_authenticated {
            self.authenticated.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the connection is a member's.
    pub(super) fn is_members(&self) -> bool {
        self.permit().kind() == Kind::Member
    }

    /// Ends when the connection has had its time: without a request, without a place of its own, or without an identity
    /// where callers must be authenticated.
    async fn until_late(&self, api: &Api) -> Late {
        if self.permit().kind() == Kind::Overflow {
            tokio::time::sleep(OVERFLOW_FOR).await;
            if self.permit().kind() == Kind::Overflow {
                return Late::Now;
            }
        }
        tokio::time::sleep(FIRST_BYTES_WITHIN).await;
        if !self.asked.load(Ordering::Relaxed) {
            return Late::Now;
        }
        while !self.authenticated.load(Ordering::Relaxed) {
            if api.is_enforced() {
                return Late::Unauthenticated;
            }
            tokio::time::sleep(ENFORCEMENT_CHECKED_EVERY).await;
        }
        std::future::pending().await
    }
}

/// Serves requests until one side ends.
pub(super) async fn serve(
    stream: Stream,
    port: Port,
    visitor: Visitor,
    mut permit: ConnectionPermit,
    protocol: WireProtocol,
) {
    if let Err(why) = permit.move_to(Kind::Client)
        && permit.move_to(Kind::Overflow).is_err()
    {
        return port.api.shared().metrics.turned_away(why);
    }
    let is_members = !port.frames || port.members == Members::Certified && visitor.member;
    let window = if is_members { MEMBERS_WINDOW_BYTES } else { WINDOW_BYTES };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Not left to the builder to find out: it would wait for the rest of a preface for as long as it takes.
    builder = match protocol {
        WireProtocol::Http2 => builder.http2_only(),
        _ => builder.http1_only(),
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(FIRST_BYTES_WITHIN)
        .max_buf_size(HTTP1_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING_EVERY)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window);
    let Port { router, api, members, hosts, .. } = port;
    let state = Arc::new(ConnectionState::new(permit));
    let visitor = Arc::new(visitor);
    let unsent = Unsent::default();
    let budget = ConnectionBudget::default();
    let stream = Sending::new(stream, unsent.clone());
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
    let late = tokio::select! {
        served = connection.as_mut() => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended");
            }
            return;
        }
        () = budget.stalled() => {
            return tracing::debug!("closed a connection: the client does not read its answers");
        }
        late = state.until_late(&api) => late,
    };
    tracing::debug!(?late, "closing a connection that has had its time");
    if late == Late::Unauthenticated {
        connection.as_mut().graceful_shutdown();
        let ended = tokio::time::timeout(LAST_ANSWERS_WITHIN, connection).await;
        drop(ended);
    }
}
