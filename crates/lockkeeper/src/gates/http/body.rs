//! The body of a request that is under way: it can be cut off, and keeps the request under way until it has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::BoxError;
use super::turnstile::{Cut, Permit};

pin_project! {
    /// The body that the inner service gets. It fails if a newer token comes while it is still being sent.
    #[derive(Debug)]
    pub struct FencedBody<B> {
        #[pin]
        body: B,
        fence: Option<Fence>,
    }
}

/// Why a body failed: a request with a newer token has come, and this one is too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request with a newer token has come: this one is cut off; stop, somebody else is at work")]
pub struct CutOff;

#[derive(Debug)]
struct Fence {
    cut: Arc<Cut>,
    _permits: Arc<Vec<Permit>>,
}

impl<B> FencedBody<B> {
    pub(super) fn new(body: B, cut: Arc<Cut>, permits: Arc<Vec<Permit>>) -> FencedBody<B> {
        FencedBody { body, fence: Some(Fence { cut, _permits: permits }) }
    }

    /// Of a request that comes under no lock.
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
        if this.fence.as_ref().is_some_and(|fence| fence.cut.is_cut(context.waker())) {
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
