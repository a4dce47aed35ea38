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

/// Clients that are connected at once; more have to wait.
const CONNECTIONS_MAX: usize = 10_000;
/// A client must finish its headers within this time.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How often a silent HTTP/2 client is asked whether it is still there.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
/// How long requests may take to end when the proxy is stopped.
const END_WITHIN: Duration = Duration::from_secs(10);
/// After a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Serves until it is told to stop.
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
                // Too many open files, most likely: those that are open are served on.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(END_WITHIN, ended).await.is_err() {
        tracing::warn!("some requests did not end in time and are broken off");
    }
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    service: FenceService<Upstream>,
    mut is_stopping: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HTTP2_PING_EVERY);
    let service = service_fn(move |request| pass_on(service.clone(), request, address));
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let outcome = tokio::select! {
        outcome = &mut served => outcome,
        _ = is_stopping.changed() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error, "a connection ended");
    }
}

async fn pass_on(
    mut service: FenceService<Upstream>,
    mut request: Request<Incoming>,
    address: SocketAddr,
) -> Result<Response<ResponseBody<Body>>, Infallible> {
    request.extensions_mut().insert(address);
    // The upstream is always ready: how much may be under way is bounded by the connections.
    service.call(request).await
}
