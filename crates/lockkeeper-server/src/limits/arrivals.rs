//! Counts bytes that have arrived on a connection and that no request has taken yet: incomplete heads of requests, HTTP/2 frames
//! and TLS records. Anybody can send them, because a caller is authenticated by a complete head.
//!
//! Every connection may have a few of them. More count in the budget of the identity of the connection, which is that of all
//! unauthenticated callers until a request is authenticated. Above that budget, connections with more are closed.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::budget::{Charge, IdentityBudget};
use super::log_throttle::LogThrottle;

/// What every connection may have: the usual head of a request.
pub(crate) const FEW_BYTES: usize = 4 << 10;

/// The arrived bytes of one connection. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    /// Counts the bytes if they are more than a few.
    charge: Option<Charge>,
    /// None: nothing is counted.
    identity: Option<Arc<IdentityBudget>>,
}

impl Arrivals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to count, for this identity. Nothing is counted during a TLS handshake: connections in one are limited in number.
    pub(crate) fn start(&self, identity: Arc<IdentityBudget>) {
        self.state().identity = Some(identity);
    }

    /// Counts for this identity from now on.
    pub(crate) fn set_identity(&self, identity: &Arc<IdentityBudget>) {
        let mut state = self.state();
        if state.identity.as_ref().is_some_and(|current| !Arc::ptr_eq(current, identity)) {
            state.identity = Some(identity.clone());
        }
    }

    /// Stops counting: the protocol has a count of its own.
    pub(crate) fn stop(&self) {
        *self.state() = State::default();
    }

    /// Notes that a request, or a part of its body, has taken what has arrived.
    pub(crate) fn taken(&self) {
        let mut state = self.state();
        state.bytes = 0;
        state.charge = None;
    }

    /// Counts bytes that have arrived. Fails if the connection must be closed.
    fn add(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.state();
        let Some(identity) = state.identity.clone() else { return Ok(()) };
        state.bytes += bytes;
        if state.bytes <= FEW_BYTES {
            return Ok(());
        }
        if !identity.has_room() {
            static THROTTLE: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = THROTTLE.allow() {
                tracing::warn!(
                    suppressed,
                    "closed a connection: incomplete request, and the client's identity is above its byte budget"
                );
            }
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let total = state.bytes;
        match &mut state.charge {
            Some(charge) => charge.grow(bytes),
            charge => *charge = Some(identity.charge(total)),
        }
        Ok(())
    }
}

/// A stream that counts what arrives on it.
pub(crate) struct CountedStream<S> {
    stream: S,
    arrivals: Arrivals,
}

impl<S> CountedStream<S> {
    pub(crate) fn new(stream: S, arrivals: Arrivals) -> CountedStream<S> {
        CountedStream { stream, arrivals }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.arrivals.add(buffer.filled().len() - before))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::limits::budget::{ByteBudget, IDENTITY_BYTES_MAX};

    /// Largest head of a request.
    const HEAD_BYTES: usize = 16 << 10;

    /// A connection of an identity, its other end, and its count.
    fn connection(budget: &ByteBudget) -> (CountedStream<DuplexStream>, DuplexStream, Arrivals) {
        let (stream, other) = duplex(1 << 16);
        let arrivals = Arrivals::default();
        arrivals.start(budget.identity().clone());
        (CountedStream::new(stream, arrivals.clone()), other, arrivals)
    }

    async fn receive(
        stream: &mut CountedStream<DuplexStream>,
        other: &mut DuplexStream,
        bytes: usize,
    ) -> io::Result<()> {
        other.write_all(&vec![7; bytes]).await?;
        stream.read_exact(&mut vec![0; bytes]).await.map(drop)
    }

    #[tokio::test]
    async fn incomplete_heads_of_all_connections_are_bounded() {
        let budget = ByteBudget::standalone();
        let (mut open, mut refused) = (Vec::new(), 0);
        // As many connections as a node accepts by default.
        for _ in 0..20_000 {
            let (mut stream, mut other, arrivals) = connection(&budget);
            match receive(&mut stream, &mut other, HEAD_BYTES).await {
                Ok(()) => open.push(arrivals),
                Err(_) => refused += 1,
            }
        }
        let held: usize = open.iter().map(|arrivals| arrivals.state().bytes).sum();
        assert!(held <= IDENTITY_BYTES_MAX + HEAD_BYTES, "{held} bytes");
        assert!(refused > 10_000, "{refused}");
        // Usual heads are accepted all the same.
        let (mut stream, mut other, arrivals) = connection(&budget);
        receive(&mut stream, &mut other, FEW_BYTES).await.unwrap();
        assert!(receive(&mut stream, &mut other, 1).await.is_err());
        // Those of other identities, too.
        arrivals.taken();
        arrivals.set_identity(ByteBudget::standalone().identity());
        receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
        // There is room again when requests are complete.
        open.iter().for_each(Arrivals::taken);
        let (mut stream, mut other, _) = connection(&budget);
        receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
    }

    #[tokio::test]
    async fn taken_bytes_are_not_counted() {
        let budget = ByteBudget::standalone();
        let (mut stream, mut other, arrivals) = connection(&budget);
        for _ in 0..2 * IDENTITY_BYTES_MAX / HEAD_BYTES {
            receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
            assert!(budget.has_identity_room());
            arrivals.taken();
        }
        arrivals.stop();
        receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
        assert_eq!(arrivals.state().bytes, 0);
    }
}
