//! Whether the answer with a grant was sent. A grant goes with its response, as an extension, to the connection; there it is
//! tied to the body, which is asked for its content when hyper is about to send it, and then to the next write to
//! the socket. It counts as delivered when that write has taken a byte. If the response, the body or the connection is
//! dropped before, the grant is given back (`crate::undelivered`).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::undelivered::UndeliveredGrant;

/// The grants of one connection that hyper is about to send. `None` when the connection is closed.
#[derive(Clone)]
pub(super) struct Unsent(Arc<Mutex<Option<Vec<UndeliveredGrant>>>>);

impl Default for Unsent {
    fn default() -> Unsent {
        Unsent(Arc::new(Mutex::new(Some(Vec::new()))))
    }
}

impl Unsent {
    fn grants(&self) -> MutexGuard<'_, Option<Vec<UndeliveredGrant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ties the grant that goes with a response to its body.
    pub(super) fn follow(&self, mut response: Response) -> Response {
        let Some(grant) = response.extensions_mut().remove::<UndeliveredGrant>() else { return response };
        let unsent = self.clone();
        response.map(|body| Body::new(GrantBody { body, grant: Some(grant), unsent }))
    }

    /// The next write sends it. On a closed connection it is dropped.
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

    /// A write has taken something. It may have been of an earlier answer; then a grant stays that could have been given
    /// back, until its session ends.
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
    unsent: Unsent,
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

/// A connection whose writes are noticed.
pub(super) struct Sending<S> {
    stream: S,
    unsent: Unsent,
}

impl<S> Sending<S> {
    pub(super) fn new(stream: S, unsent: Unsent) -> Sending<S> {
        Sending { stream, unsent }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.unsent.sent();
        }
        written
    }
}

impl<S> Drop for Sending<S> {
    fn drop(&mut self) {
        self.unsent.close();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sending<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sending<S> {
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
    use crate::shared::Shared;
    use crate::undelivered::tests::{given_back, shared, undelivered};

    /// A connection, its other end, and an answer with a grant on it.
    fn stage() -> (Arc<Shared>, Sending<DuplexStream>, DuplexStream, Response) {
        let (shared, unsent) = (shared(), Unsent::default());
        let (stream, other) = duplex(64);
        let mut response = Response::new(Body::from("token"));
        response.extensions_mut().insert(undelivered(&shared));
        let response = unsent.follow(response);
        (shared, Sending::new(stream, unsent), other, response)
    }

    #[tokio::test]
    async fn an_answer_that_is_dropped_before_it_is_asked_for_gives_its_grant_back() {
        let (shared, stream, _other, response) = stage();
        assert_eq!(response.body().size_hint().exact(), Some(5), "its length is known");
        drop(response);
        assert!(given_back(&shared));
        drop(stream);
    }

    #[tokio::test]
    async fn an_answer_of_which_a_byte_was_written_keeps_its_grant() {
        let (shared, mut stream, mut other, response) = stage();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        stream.write_all(&bytes).await.unwrap();
        drop(stream);
        assert!(!given_back(&shared));
        let mut read = String::new();
        other.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "token");
    }

    #[tokio::test]
    async fn an_answer_that_was_asked_for_and_never_written_gives_its_grant_back() {
        let (shared, mut stream, other, response) = stage();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert!(!given_back(&shared), "it is about to be sent");
        drop(other);
        assert!(stream.write_all(&bytes).await.is_err(), "the caller has gone");
        drop(stream);
        assert!(given_back(&shared));
    }

    #[tokio::test]
    async fn an_answer_that_is_asked_for_when_the_connection_is_closed_gives_its_grant_back() {
        let (shared, stream, _other, response) = stage();
        drop(stream);
        response.into_body().collect().await.unwrap();
        assert!(given_back(&shared));
    }
}
