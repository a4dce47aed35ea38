//! The body of a request in flight: it can be aborted, and it keeps the request in flight until it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::BoxError;
use super::in_flight::{BodyAbort, Permit};

pin_project! {
    /// Request body as the inner service sees it. It fails if a request with a newer token arrives while it is being sent.
    #[derive(Debug)]
    pub struct FencedBody<B> {
        #[pin]
        body: B,
        fence: Option<Fence>,
    }
}

/// Error of a body that was cut off because a request with a newer token has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body was cut off by a request with a newer token: stop, another holder is at work")]
pub struct CutOff;

#[derive(Debug)]
struct Fence {
    abort: Arc<BodyAbort>,
    _permits: Arc<Vec<Permit>>,
}

impl<B> FencedBody<B> {
    pub(super) fn new(body: B, abort: Arc<BodyAbort>, permits: Arc<Vec<Permit>>) -> FencedBody<B> {
        FencedBody { body, fence: Some(Fence { abort, _permits: permits }) }
    }

    /// The body of a request without a fence.
    pub(super) fn unfenced(body: B) -> FencedBody<B> {
        FencedBody { body, fence: None }
    }
}

impl<B: Body> Body for FencedBody<B>
where
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.project();
        if this.fence.as_ref().is_some_and(|fence| fence.abort.is_aborted(context.waker())) {
            *this.fence = None;
            return Poll::Ready(Some(Err(Box::new(CutOff))));
        }
        match std::task::ready!(this.body.poll_frame(context)) {
            Some(frame) => Poll::Ready(Some(frame.map_err(Into::into))),
            None => {
                *this.fence = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
