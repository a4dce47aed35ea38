//! A connection on which HTTP is spoken, version 1 or 2, with gRPC in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use lockkeeper_proto::net::Stream;
use lockkeeper_proto::tls::Visitor;

use super::crowd::{Kind, Seat};
use super::delivery::{Sending, Unsent};
use super::opening::Opening;
use super::reception::Reception;
use super::{FIRST_BYTES_WITHIN, Port};
use crate::budget::ConnectionBudget;

/// How often a silent HTTP/2 client is asked whether it is still there.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
/// What may be under way to us on one HTTP/2 stream or connection: entries and snapshots of members come in large
/// messages.
const WINDOW_BYTES: u32 = 2 << 20;
/// The largest frame of HTTP/2 that others may send: the entry of a busy node goes in one, and so in one write.
const FRAME_BYTES: u32 = 64 << 10;
/// What hyper keeps of each answer, beside what the budget counts.
const SEND_BUFFER_BYTES: usize = 16 << 10;
/// Requests that are under way on one HTTP/2 connection; waiting acquires are among them.
const STREAMS_MAX: u32 = 200;
/// What is kept of one HTTP/1 connection: its head must fit into it.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// How long a connection lasts that has no place among the clients.
const OVERFLOW_FOR: Duration = Duration::from_secs(5);

/// A connection's place, as its requests show what it is for.
#[derive(Debug)]
pub(super) struct Place {
    seat: Mutex<Seat>,
    /// Whether there was a request.
    asked: AtomicBool,
}

impl Place {
    fn new(seat: Seat) -> Place {
        Place { seat: Mutex::new(seat), asked: AtomicBool::new(false) }
    }

    pub(super) fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There was a request.
    pub(super) fn note_request(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Ends when the connection has had its time: without a request, or without a place of its own.
    async fn until_late(&self) {
        if self.seat().kind() == Kind::Overflow {
            tokio::time::sleep(OVERFLOW_FOR).await;
            if self.seat().kind() == Kind::Overflow {
                return;
            }
        }
        tokio::time::sleep(FIRST_BYTES_WITHIN).await;
        if self.asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

/// Serves requests until one side ends.
pub(super) async fn serve(stream: Stream, port: Port, visitor: Visitor, mut seat: Seat, opening: Opening) {
    if let Err(why) = seat.move_to(Kind::Client)
        && seat.move_to(Kind::Overflow).is_err()
    {
        return port.calls.shared().metrics.turned_away(why);
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Not left to the builder to find out: it would wait for the rest of a preface for as long as it takes.
    builder = match opening {
        Opening::Http2 => builder.http2_only(),
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
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let Port { router, calls, members, hosts, .. } = port;
    let place = Arc::new(Place::new(seat));
    let visitor = Arc::new(visitor);
    let unsent = Unsent::default();
    let budget = ConnectionBudget::default();
    let stream = Sending::new(stream, unsent.clone());
    let reception = Reception {
        router,
        calls,
        visitor,
        members,
        hosts,
        place: place.clone(),
        unsent,
        budget: budget.clone(),
    };
    let service = TowerToHyperService::new(reception);
    tokio::select! {
        served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service) => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended");
            }
        }
        () = budget.stalled() => tracing::debug!("closed a connection: the client does not read its answers"),
        () = place.until_late() => tracing::debug!("a connection had its time and was closed"),
    }
}
