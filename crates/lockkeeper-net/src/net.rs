//! Byte streams between clients and nodes, and between nodes: TCP, TLS over it, or a simulated network.
//!
//! A simulation replaces network, randomness and clocks for everything that runs on its thread: see
//! [`crate::simulation`].

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An open connection.
pub enum Stream {
    /// A TCP connection of the system. A separate variant, so that the hot path needs no box and no lock around its halves.
    Tcp(TcpStream),
    /// Any other byte stream.
    Other(Box<dyn Duplex>),
}

/// Connects to `host:port`.
pub async fn connect(address: &str) -> io::Result<Stream> {
    #[cfg(feature = "simulation")]
    if let Some(connecting) = crate::simulation::host().map(|host| host.connect(address)) {
        return connecting.await.map(Stream::Other);
    }
    let stream = TcpStream::connect(address).await?;
    // Messages are small and latency matters: disable Nagle's algorithm.
    stream.set_nodelay(true)?;
    Ok(Stream::Tcp(stream))
}

/// A listening port.
pub enum Listener {
    /// A port of the system.
    Tcp(TcpListener),
    /// A port of a simulation.
    #[cfg(feature = "simulation")]
    Simulated(Box<dyn crate::simulation::Port>),
}

impl Listener {
    /// Opens the port.
    pub async fn bind(address: &str) -> io::Result<Listener> {
        #[cfg(feature = "simulation")]
        if let Some(host) = crate::simulation::host() {
            return host.bind(address).map(Listener::Simulated);
        }
        TcpListener::bind(address).await.map(Listener::Tcp)
    }

    /// The local address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr(),
            #[cfg(feature = "simulation")]
            Listener::Simulated(port) => Ok(port.address()),
        }
    }

    /// Accepts the next connection. Cancel-safe.
    pub async fn accept(&mut self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            #[cfg(feature = "simulation")]
            Listener::Simulated(port) => std::future::poll_fn(|context| port.poll_accept(context)).await,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Other(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Other(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Other(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Other(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Stream::Other(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Other(stream) => stream.is_write_vectored(),
        }
    }
}
