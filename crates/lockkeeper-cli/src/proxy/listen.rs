//! The port of the proxy.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use lockkeeper::gates::http::{FenceService, ResponseBody};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_service::Service;

use super::upstream::{Body, Upstream};

/// Maximum number of connections; further ones stay in the listen backlog.
const CONNECTIONS_MAX: usize = 10_000;
/// Time limit for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Ping interval for silent HTTP/2 clients.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Grace period for requests in flight when the proxy stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` resolves.
pub(super) async fn serve(
    listener: TcpListener,
    service: FenceService<Upstream>,
    stop: impl Future<Output = ()>,
) {
    let (stopping, is_stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        let accepted = tokio::select! {
            accepted = listener.accept(), if has_room => accepted,
            Some(_) = connections.join_next() => continue,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, address)) => {
                connections.spawn(connection(stream, address, service.clone(), is_stopping.clone()));
            }
            Err(error) => {
                // Most likely too many open files: open connections continue.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_GRACE, ended).await.is_err() {
        tracing::warn!("requests aborted: they did not end within the grace period");
    }
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    service: FenceService<Upstream>,
    mut is_stopping: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "failed to set TCP_NODELAY");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HTTP2_PING_INTERVAL);
    let service = service_fn(move |request| forward(service.clone(), request, address));
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let outcome = tokio::select! {
        outcome = &mut served => outcome,
        _ = is_stopping.changed() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error, "connection failed");
    }
}

async fn forward(
    mut service: FenceService<Upstream>,
    mut request: Request<Incoming>,
    address: SocketAddr,
) -> Result<Response<ResponseBody<Body>>, Infallible> {
    request.extensions_mut().insert(address);
    // The upstream is always ready: the number of connections bounds the requests in flight.
    service.call(request).await
}
