//! The deadline for the message of a unary gRPC call. Without it a caller could occupy memory by never completing its
//! message. JSON bodies have the same deadline in `http/body.rs`, streamed messages in `reassembly.rs`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::HttpBody;
use bytes::Bytes;
use http_body::Frame;
use tokio::time::Sleep;
use tonic::Status;

use super::grpc;
use crate::failure::Failure;
use crate::limits::deadlines::MESSAGE_WITHIN;

/// A body that fails when it takes too long.
pub(super) struct MessageDeadline<B> {
    body: Pin<Box<B>>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> MessageDeadline<B> {
    pub(super) fn new(body: B) -> MessageDeadline<B> {
        MessageDeadline { body: Box::pin(body), deadline: None }
    }
}

impl<B> HttpBody for MessageDeadline<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Poll::Ready(frame) = self.body.as_mut().poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        // Most messages arrive at once and never need a timer.
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(MESSAGE_WITHIN)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(too_slow().into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

fn too_slow() -> Status {
    let text = format!("the message did not arrive within {} s: nothing was done", MESSAGE_WITHIN.as_secs());
    grpc::status(Failure::Invalid(text))
}
