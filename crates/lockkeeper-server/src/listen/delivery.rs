//! Tracks whether the answer with a grant was sent. The grant travels with its response as an extension. The connection moves
//! it to the body, which hyper polls when it is about to send, and then to the next write to the socket. The grant counts as
//! delivered when that write has accepted a byte. If the response, the body or the connection is dropped before, the grant is
//! released (`crate::effects::undelivered`).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::effects::undelivered::UndeliveredGrant;

/// The grants of one connection that hyper is about to send. `None` when the connection is closed.
#[derive(Clone)]
pub(super) struct UnsentGrants(Arc<Mutex<Option<Vec<UndeliveredGrant>>>>);

impl Default for UnsentGrants {
    fn default() -> UnsentGrants {
        UnsentGrants(Arc::new(Mutex::new(Some(Vec::new()))))
    }
}

impl UnsentGrants {
    fn grants(&self) -> MutexGuard<'_, Option<Vec<UndeliveredGrant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the grant of a response into its body.
    pub(super) fn track(&self, mut response: Response) -> Response {
        let Some(grant) = response.extensions_mut().remove::<UndeliveredGrant>() else { return response };
        let unsent = self.clone();
        response.map(|body| Body::new(GrantBody { body, grant: Some(grant), unsent }))
    }

    /// Adds a grant that the next write sends. On a closed connection it is dropped.
    fn about_to_send(&self, grant: UndeliveredGrant) {
        let mut grants = self.grants();
        match grants.as_mut() {
            Some(grants) => grants.push(grant),
            None => {
                drop(grants);
                drop(grant);
            }
        }
    }

    /// Marks all grants as delivered after a write. The bytes may belong to an earlier answer; then a grant that could have
    /// been released is kept until its session ends.
    fn sent(&self) {
        let mut grants = self.grants();
        let Some(grants) = grants.as_mut().filter(|grants| !grants.is_empty()) else { return };
        grants.drain(..).for_each(|grant| grant.delivered());
    }

    fn close(&self) {
        let left = self.grants().take();
        drop(left);
    }
}

/// The body of an answer with a grant.
struct GrantBody {
    body: Body,
    grant: Option<UndeliveredGrant>,
    unsent: UnsentGrants,
}

impl HttpBody for GrantBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready()
            && let Some(grant) = self.grant.take()
        {
            self.unsent.about_to_send(grant);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that marks grants as delivered when it writes.
pub(super) struct DeliveryTracker<S> {
    stream: S,
    unsent: UnsentGrants,
}

impl<S> DeliveryTracker<S> {
    pub(super) fn new(stream: S, unsent: UnsentGrants) -> DeliveryTracker<S> {
        DeliveryTracker { stream, unsent }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.unsent.sent();
        }
        written
    }
}

impl<S> Drop for DeliveryTracker<S> {
    fn drop(&mut self) {
        self.unsent.close();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DeliveryTracker<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeliveryTracker<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note(written)
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
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::effects::undelivered::tests::{given_back, shared, undelivered};
    use crate::shared::Shared;

    /// Returns a connection, its other end, and an answer with a grant.
    fn connection_with_grant() -> (Arc<Shared>, DeliveryTracker<DuplexStream>, DuplexStream, Response) {
        let (shared, unsent) = (shared(), UnsentGrants::default());
        let (stream, other) = duplex(64);
        let mut response = Response::new(Body::from("token"));
        response.extensions_mut().insert(undelivered(&shared));
        let response = unsent.track(response);
        (shared, DeliveryTracker::new(stream, unsent), other, response)
    }

    #[tokio::test]
    async fn answer_dropped_before_it_is_polled_releases_its_grant() {
        let (shared, stream, _other, response) = connection_with_grant();
        assert_eq!(response.body().size_hint().exact(), Some(5), "its length is known");
        drop(response);
        assert!(given_back(&shared));
        drop(stream);
    }

    #[tokio::test]
    async fn answer_of_which_a_byte_was_written_keeps_its_grant() {
        let (shared, mut stream, mut other, response) = connection_with_grant();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        stream.write_all(&bytes).await.unwrap();
        drop(stream);
        assert!(!given_back(&shared));
        let mut read = String::new();
        other.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "token");
    }

    #[tokio::test]
    async fn answer_polled_and_never_written_releases_its_grant() {
        let (shared, mut stream, other, response) = connection_with_grant();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert!(!given_back(&shared), "it is about to be sent");
        drop(other);
        assert!(stream.write_all(&bytes).await.is_err(), "the caller has disconnected");
        drop(stream);
        assert!(given_back(&shared));
    }

    #[tokio::test]
    async fn answer_polled_after_the_connection_is_closed_releases_its_grant() {
        let (shared, stream, _other, response) = connection_with_grant();
        drop(stream);
        response.into_body().collect().await.unwrap();
        assert!(given_back(&shared));
    }
}
