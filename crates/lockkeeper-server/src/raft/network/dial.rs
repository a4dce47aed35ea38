//! Connections to other members.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use lockkeeper_net::net::{self, Stream};
use lockkeeper_net::tls::ClientTls;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::raft::timing::Timing;

/// HTTP/2 flow-control window of a stream and of a connection.
const WINDOW_BYTES: u32 = 8 << 20;

impl Dialer {
    /// Creates a gRPC channel to this address that connects on first use, and reconnects.
    pub(super) fn connect_lazily(&self, address: &str, timing: &Timing) -> Result<Channel, String> {
        Ok(endpoint(address, timing)?.connect_with_connector_lazy(self.clone()))
    }

    /// Connects a gRPC channel to this address.
    pub(super) async fn connect_grpc(&self, address: &str, timing: &Timing) -> Result<Channel, String> {
        let endpoint = endpoint(address, timing)?;
        endpoint.connect_with_connector(self.clone()).await.map_err(|error| root_cause(&error))
    }
}

fn endpoint(address: &str, timing: &Timing) -> Result<Endpoint, String> {
    Ok(Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| format!("{address} is not a valid address: {error}"))?
        .connect_timeout(timing.connect_within())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(timing.grpc_stalled_after())
        .keep_alive_while_idle(true))
}

/// Returns the root cause of a connection error. The outer errors only say that there is no connection.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Opens connections to members. Under TLS, members show each other their certificates.
#[derive(Debug, Clone, Default)]
pub struct Dialer {
    tls: Option<ClientTls>,
}

impl Dialer {
    /// Creates a dialer that uses TLS if it is given.
    pub fn new(tls: Option<ClientTls>) -> Dialer {
        Dialer { tls }
    }

    /// Opens a connection for this protocol. `prepare` sets socket options before anything is sent.
    pub(super) async fn connect(
        &self,
        address: &str,
        protocol: Option<&str>,
        prepare: impl FnOnce(&TcpStream),
    ) -> io::Result<Stream> {
        let stream = net::connect(address).await?;
        if let Stream::Tcp(stream) = &stream {
            prepare(stream);
        }
        match &self.tls {
            None => Ok(stream),
            Some(tls) => tls.wrap(address, stream, protocol).await,
        }
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move {
            let address = target.authority().map(ToString::to_string).unwrap_or_default();
            dialer.connect(&address, Some("h2"), |_| {}).await.map(TokioIo::new)
        })
    }
}
