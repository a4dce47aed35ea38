//! Counts bytes that have arrived on a connection and that no request has taken yet: incomplete heads of requests, HTTP/2 frames
//! and TLS records. Anybody can send them, because a caller is authenticated by a complete head.
//!
//! Every connection may have a few of them. More count in the budget of the identity of the connection, which is that of all
//! unauthenticated callers until a request is authenticated. Above that budget, connections of unknown callers with more are closed.
//! Those of known callers stay open: their renewals and releases continue, and what one connection holds is bounded.
//!
//! Not every byte is part of a request: frames such as those that answer pings are not kept. Older bytes are therefore forgotten.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::budget::{Charge, IdentityBudget};
use super::log_throttle::LogThrottle;

/// What every connection may have: the usual head of a request.
pub(crate) const FEW_BYTES: usize = 4 << 10;
/// More than a connection keeps: its HTTP/2 window, a frame and the head of a request.
const HELD_MAX: usize = 128 << 10;
/// Longer than an incomplete request, frame or TLS record is kept.
const HELD_FOR: Duration = Duration::from_secs(60);

/// The arrived bytes of one connection. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    /// When the first of them arrived.
    since: Option<Instant>,
    /// Whether a request was authenticated, where callers must be.
    is_known: bool,
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
    pub(crate) fn set_identity(&self, identity: &Arc<IdentityBudget>, is_known: bool) {
        let mut state = self.state();
        state.is_known = is_known;
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
        (state.bytes, state.since, state.charge) = (0, None, None);
    }

    /// Counts bytes that have arrived. Fails if the connection must be closed.
    fn add(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.state();
        let State { bytes: held, since, is_known, charge, identity: Some(identity) } = &mut *state else {
            return Ok(());
        };
        if since.get_or_insert_with(Instant::now).elapsed() > HELD_FOR {
            (*held, *charge, *since) = (0, None, Some(Instant::now()));
        }
        let counted = bytes.min(HELD_MAX.saturating_sub(*held));
        *held += counted;
        if *held <= FEW_BYTES {
            return Ok(());
        }
        if !*is_known && !identity.has_room() {
            static THROTTLE: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = THROTTLE.allow() {
                tracing::warn!(
                    suppressed,
                    "closed a connection: incomplete request, and the client's identity is above its byte budget"
                );
            }
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        match charge {
            Some(charge) => charge.grow(counted),
            None => *charge = Some(identity.charge(*held)),
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
        arrivals.set_identity(ByteBudget::standalone().identity(), false);
        receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
        // There is room again when requests are complete.
        open.iter().for_each(Arrivals::taken);
        let (mut stream, mut other, _) = connection(&budget);
        receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
    }

    /// Frames that are no part of a request, such as answers to pings, do not use up the budget of a known caller.
    #[tokio::test]
    async fn one_connection_counts_at_most_what_it_can_hold() {
        let budget = ByteBudget::standalone();
        let (mut stream, mut other, arrivals) = connection(&budget);
        arrivals.set_identity(budget.identity(), true);
        for _ in 0..2 * IDENTITY_BYTES_MAX / HEAD_BYTES {
            receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
        }
        assert_eq!(arrivals.state().bytes, HELD_MAX);
        assert!(budget.has_identity_room());
    }

    /// Above the budget, a known caller can still send its renewals.
    #[tokio::test]
    async fn known_callers_are_not_closed() {
        let budget = ByteBudget::standalone();
        let full = budget.identity().charge(IDENTITY_BYTES_MAX + 1);
        let (mut stream, mut other, arrivals) = connection(&budget);
        assert!(receive(&mut stream, &mut other, HEAD_BYTES).await.is_err(), "an unknown caller is closed");
        let (mut stream, mut other, known) = connection(&budget);
        known.set_identity(budget.identity(), true);
        receive(&mut stream, &mut other, HEAD_BYTES).await.unwrap();
        drop((full, arrivals));
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
