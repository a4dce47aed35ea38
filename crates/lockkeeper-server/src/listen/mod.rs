//! The port: gRPC and HTTP side by side.

mod grpc;
pub mod http;

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::calls::Calls;

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
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    pub(crate) async fn bind(address: &str) -> Result<Listener, ListenError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { address: address.to_owned() },
            _ => ListenError::Other { address: address.to_owned(), error },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Listener { listener, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the node stops.
    pub(crate) async fn serve(self, calls: Calls) {
        use axum::serve::ListenerExt;
        let router = grpc::router(calls.clone()).merge(http::router(calls));
        // An answer is small and somebody waits for it: it must not wait for more to send.
        let listener = self.listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection keeps its delay");
            }
        });
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the port was closed");
        }
    }
}
